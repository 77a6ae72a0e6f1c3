{{- /* Names, labels and images that several templates share. */ -}}

{{- define "fireflyer.labels" -}}
app.kubernetes.io/name: fireflyer
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "fireflyer.selector" -}}
app.kubernetes.io/name: fireflyer
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* The kinds that own pods, as a list of CEL. */ -}}
{{- define "fireflyer.kinds" -}}
['TrainingJob', 'NodeValidation']
{{- end -}}

{{- define "fireflyer.image" -}}
{{- $all := .root.Values.images -}}
{{- $own := get $all (camelcase (.image | replace "-" "_") | untitle) | default dict -}}
{{- with $own.registry | default $all.registry }}{{ . }}/{{ end -}}
{{ $own.repository | default (printf "%s/%s" $all.repository .image) }}:{{ $own.tag | default $all.tag | default .root.Chart.AppVersion }}
{{- with $own.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The agent's pools: those that the values name, else one of all nodes. Each says all that its DaemonSet needs. */ -}}
{{- define "fireflyer.pools" -}}
{{- $all := .Values.devicePlugin -}}
{{- $shared := pick $all "nodeClass" "zone" "leaf" "fixture" "nodeSelector" "tolerations" -}}
{{- $pools := list -}}
{{- range $all.pools }}
{{- $pools = append $pools (mergeOverwrite (deepCopy $shared) (deepCopy .) (dict "suffix" (printf "-%s" .name) "nodeSelector" .nodeSelector)) -}}
{{- else }}
{{- if and $all.nodeClass (empty $all.nodeSelector) }}
{{- fail "devicePlugin.nodeClass would label every node that the agent runs on, those without GPUs too: say in devicePlugin.nodeSelector which nodes are of the class, or describe them in devicePlugin.pools" }}
{{- end }}
{{- $pools = append $pools (merge (dict "name" "" "suffix" "") $shared) -}}
{{- end }}
{{- dict "pools" $pools | toJson -}}
{{- end -}}

{{- /* Refuses an install or upgrade where a kind of the Prometheus operator is missing. `helm template` and `helm lint` do
       not ask a cluster: there `lookup` finds nothing, and everything is rendered. */ -}}
{{- define "fireflyer.monitoring" -}}
{{- if not (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) }}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- fail (printf "%s needs the Prometheus operator, and the cluster does not have its kind %s: install its CRDs first, or set %s to false" .value .kind .value) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fireflyer.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The Secret with the file system's UUID and keys. */ -}}
{{- define "fireflyer.storageSecret" -}}
{{ .Values.storage.existingSecret | default "fireflyer-storage" }}
{{- end -}}

{{- /* Labels of the nodes with the disks, and of the one with the metadata. An administrator sets them: the agents may not,
       since their labels are under other domains. */ -}}
{{- define "fireflyer.storageNodes" -}}
{{ .Values.storage.nodeSelector | default (dict "storage.fireflyer.dev/targets" "true") | toYaml }}
{{- end -}}
{{- define "fireflyer.storageMetaNode" -}}
{{ .Values.storage.meta.nodeSelector | default (dict "storage.fireflyer.dev/meta" "true") | toYaml }}
{{- end -}}

{{- /* Addresses of the chain manager and the metadata service: from what the kubelet sets for their Service, so that storage
       does not depend on DNS. */ -}}
{{- define "fireflyer.storageManager" -}}
$(FIREFLYER_STORAGE_META_SERVICE_HOST):$(FIREFLYER_STORAGE_META_SERVICE_PORT_MANAGER)
{{- end -}}
{{- define "fireflyer.storageMeta" -}}
$(FIREFLYER_STORAGE_META_SERVICE_HOST):$(FIREFLYER_STORAGE_META_SERVICE_PORT_META)
{{- end -}}

{{- /* Probes of a program of ours by the name of its port. A program is restarted only where that costs nothing. */ -}}
{{- define "fireflyer.livenessProbe" -}}
livenessProbe:
  httpGet: {path: /live, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}
{{- define "fireflyer.readinessProbe" -}}
readinessProbe:
  httpGet: {path: /ready, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 2
{{- end -}}

{{- /* What a container needs that has nothing to do with the host. */ -}}
{{- define "fireflyer.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Taints under which the pods with storage's data stay where the data is. */ -}}
{{- define "fireflyer.storageTolerations" -}}
- {key: fireflyer.dev/quarantine, operator: Exists}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}
- {key: node.kubernetes.io/disk-pressure, operator: Exists, effect: NoSchedule}
{{- with .Values.storage.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
