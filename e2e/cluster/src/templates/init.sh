#!/bin/bash
# PID 1 of a node: gives it file systems of its own at the standard paths, then keeps containerd,
# kubelet and kube-proxy running. It lives in the node's own network, mount and PID namespaces; when
# it is killed, the whole node dies with it. All it needs comes in the environment: NODE, ADDRESS,
# FOLDER (the node's own), PODS (the pod range of the cluster), KUBECONFIG of the kubelet and
# PROXY_KUBECONFIG, IMAGES to import first, LOGS, SHARED, and a PATH with the tools.
set -eu

mount -t proc proc /proc
mount --bind "$FOLDER/lib" /var/lib
mount --bind "$FOLDER/log" /var/log
# Fresh at every start, like a real machine's: dead sockets and the pods' old addresses go with it.
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/cni/net.d /run/sysctl /var/lib/demo-shared /var/lib/kubelet
cp "$FOLDER/etc/cni.conflist" /run/cni/net.d/10-pods.conflist
mount --bind "$SHARED" /var/lib/demo-shared

# The kernel takes its time to remove what pods of an earlier life had. Their addresses are given again: a route of an old
# pod would keep that of a new one from being made, and then go.
ip -o link show type veth | sed -n 's/^[0-9]*: \(veth[^@:]*\).*/\1/p' | while read -r link; do
    ip link delete "$link" 2> /dev/null || true
done

# The kubelet insists on these values. They belong to the whole machine, so it is shown files that
# already have them.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    [ -e "/proc/sys/$name" ] || continue
    echo "${setting#*=}" > "/run/sysctl/${name//\//.}"
    mount --bind "/run/sysctl/${name//\//.}" "/proc/sys/$name"
done
# Pods that mount for others (mountPropagation: Bidirectional) need it.
mount --make-rshared /

supervise() {
    local name=$1
    shift
    while :; do
        "$@" >> "$LOGS/$name.log" 2>&1 || true
        echo "$name ended; it is started again" >> "$LOGS/$name.log"
        sleep 1
    done
}

supervise containerd containerd --config "$FOLDER/etc/containerd.toml" &
until ctr version > /dev/null 2>&1; do sleep 0.05; done
for image in $IMAGES; do
    ctr --namespace k8s.io images import "$image" > /dev/null
done
supervise kubelet kubelet --config "$FOLDER/etc/kubelet.yaml" --kubeconfig "$KUBECONFIG" \
    --hostname-override "$NODE" --node-ip "$ADDRESS" --node-labels "$LABELS" &
# The zeros leave the machine's connection tracking as it is.
supervise kube-proxy kube-proxy --kubeconfig "$PROXY_KUBECONFIG" --proxy-mode nftables \
    --cluster-cidr "$PODS" --hostname-override "$NODE" --conntrack-max-per-core 0 \
    --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0 &

set +e
while :; do wait -n || sleep 1; done
