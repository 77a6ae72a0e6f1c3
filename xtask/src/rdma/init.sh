#!/bin/busybox sh
# The first and only process of the guest: makes four nodes out of one kernel, then runs the tests one by one. What it
# prints is read by guest.rs. A node is an rxe device on its own end of a veth pair; the other ends are on one bridge.
/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/tmp RUST_BACKTRACE=1
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm && mount -t tmpfs none /dev/shm
# The console has the kernel's own words; results go over a line of their own.
exec > /dev/ttyS1 2>&1 < /dev/null

for module in /modules/*; do insmod "$module" || echo "guest: failed to load $module"; done
# Registered memory counts as locked.
ulimit -l unlimited

# busybox has an ip of its own, which cannot do this.
ip() { /sbin/ip "$@"; }
ip link set lo up
ip link add name switch type bridge
ip link set dev switch up
# Addresses of one machine answer only where they are, and packets between them take the wire: by default the kernel
# hands them over inside, which no rxe device sees.
echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
nodes="0 1 2 3"
for i in $nodes; do
  ip link add "v$i" type veth peer name "p$i"
  ip link set "p$i" mtu 4200 master switch up
  echo 1 > "/proc/sys/net/ipv4/conf/v$i/accept_local"
  echo 0 > "/proc/sys/net/ipv4/conf/v$i/rp_filter"
  ip address add "192.0.2.1$i/32" dev "v$i"
  ip link set "v$i" mtu 4200 up
  ip rule add priority "10$i" iif "v$i" lookup local
  ip rule add priority "11$i" from "192.0.2.1$i" lookup "20$i"
  for j in $nodes; do
    [ "$i" = "$j" ] || ip route add "192.0.2.1$j/32" dev "v$i" src "192.0.2.1$i" table "20$i"
  done
done
ip rule add priority 200 lookup local
ip rule del priority 0
for i in $nodes; do
  rdma link add "rxe$i" type rxe netdev "v$i" || echo "guest: failed to make rxe$i"
done
echo "guest: ready"

while read -r program name <&3; do
  # A test that was killed may have left a cable unplugged.
  ip link set dev switch up
  for i in $nodes; do
    ip link set "p$i" up
    until grep -q ACTIVE "/sys/class/infiniband/rxe$i/ports/1/state"; do usleep 10000; done
  done
  begun=$(cut -d. -f1 /proc/uptime)
  timeout -s KILL 120 "$program" --ignored --exact "$name" --nocapture > /tmp/output 2>&1 3<&-
  status=$?
  took=$(($(cut -d. -f1 /proc/uptime) - begun))
  if [ "$status" = 0 ]; then
    echo "test $name ... ok ($took s)"
  else
    sed 's/^/  | /' /tmp/output
    echo "test $name ... FAILED (status $status, $took s)"
  fi
done 3< /tests
echo "guest: end"
poweroff -f
