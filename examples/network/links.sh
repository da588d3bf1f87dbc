#!/bin/sh
# Simulates machines on a network of a given rate with network namespaces. Needs root and iproute2; leaves nothing behind.
#
#   links.sh up COUNT [RATE]    machines 1..COUNT at 10.77.0.1 .., each with a link of RATE (100mbit) in both directions
#   links.sh run NUMBER COMMAND...
#   links.sh down
set -eu
NAME=glovewire

up() {
  ip link add "$NAME" type bridge # fails if machines are up already, and leaves them alone
  trap down EXIT
  ip addr add 10.77.0.254/24 dev "$NAME"
  ip link set "$NAME" up
  # Where Docker runs, bridged packets pass through iptables too, whose FORWARD policy drops them.
  if command -v iptables > /dev/null; then iptables -I FORWARD -i "$NAME" -o "$NAME" -j ACCEPT; fi
  for number in $(seq "$1"); do
    space="$NAME-$number" outside="gw-out$number"
    ip netns add "$space"
    ip link add "$outside" type veth peer name eth0 netns "$space"
    ip link set "$outside" master "$NAME" up
    ip -n "$space" addr add "10.77.0.$number/24" dev eth0
    ip -n "$space" link set lo up
    ip -n "$space" link set eth0 up
    if [ -z "$2" ]; then continue; fi
    # A bucket of 10 ms, because a smaller one slows bulk traffic below the rate.
    tc qdisc add dev "$outside" root tbf rate "$2" burst 256kb latency 50ms
    ip netns exec "$space" tc qdisc add dev eth0 root tbf rate "$2" burst 256kb latency 50ms
  done
  trap - EXIT
}

down() {
  # Deleting a namespace removes its links with a delay; delete them first, so that `up` works right after `down`.
  for outside in $(ip -o link show | grep -o "gw-out[0-9]*"); do ip link del "$outside"; done
  for space in $(ip netns list | grep -o "^$NAME-[0-9]*"); do ip netns del "$space"; done
  if command -v iptables > /dev/null; then iptables -D FORWARD -i "$NAME" -o "$NAME" -j ACCEPT 2> /dev/null || true; fi
  if ip link show "$NAME" > /dev/null 2>&1; then ip link del "$NAME"; fi
}

case "${1:-}" in
  up) up "$2" "${3:-}" ;;
  down) down ;;
  run) number="$2"; shift 2; exec ip netns exec "$NAME-$number" "$@" ;;
  *) sed -n '2,7p' "$0"; exit 2 ;;
esac
