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

{{- define "fireflyer.image" -}}
{{ .root.Values.images.repository }}/{{ .image }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "fireflyer.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
