#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the topologies beside it, as hwloc's XML: hosts that no test machine is.

  python3 tests/topologies/make.py [FOLDER]

A host is sockets with a NUMA node each; below a socket are host bridges; below those, bridges
(lists) and cards. Only what hwloc needs to load a file is written, and no caches.
"""
import os
import sys

H100 = ("0302", "10de:2330", "GH100 [H100 SXM5 80GB]")
CX7 = ("0207", "15b3:1021", "MT2910 Family [ConnectX-7]")
CX6 = ("0200", "15b3:101d", "MT2892 Family [ConnectX-6 Dx]")
EFA = ("0200", "1d0f:efa2", None)
ENA = ("0200", "1d0f:ec20", "Elastic Network Adapter (ENA)")
VGA = ("0300", "1a03:2000", "ASPEED Graphics Family")


def gpu(number):
    return H100, [("1", f"renderD{128 + number}", {})]


def rdma(name, *states):
    """An OpenFabrics device with ports; 4 is the kernel's number of ACTIVE, 1 of DOWN."""
    infos = {}
    for port, state in enumerate(states or (4,), start=1):
        infos[f"Port{port}State"] = state
    return ("3", name, infos)


def net(name, address="a0:88:c2:00:00:01"):
    return ("2", name, {"Address": address})


class Writer:
    def __init__(self, cores_each, sockets):
        self.lines, self.number, self.cores_each = [], 0, cores_each
        self.pus = cores_each * sockets
        self.bus = 0

    def put(self, depth, kind, attributes, close=False):
        self.number += 1
        text = " ".join(f'{key}="{value}"' for key, value in attributes.items())
        self.lines.append(" " * depth + f'<object type="{kind}" gp_index="{self.number}" {text}'
                          + ("/>" if close else ">"))

    def end(self, depth):
        self.lines.append(" " * depth + "</object>")

    def info(self, depth, name, value):
        self.lines.append(" " * depth + f'<info name="{name}" value="{value}"/>')

    def sets(self, first, count, nodes):
        cpus = ((1 << count) - 1) << first
        cpuset = f"{cpus:#x}"
        return {"cpuset": cpuset, "complete_cpuset": cpuset,
                "nodeset": f"{nodes:#x}", "complete_nodeset": f"{nodes:#x}"}

    def cores(self, depth, socket):
        first = socket * self.cores_each
        for core in range(first, first + self.cores_each):
            sets = self.sets(core, 1, 1 << socket)
            self.put(depth, "Core", {"os_index": core} | sets)
            self.put(depth + 1, "PU", {"os_index": core} | sets, close=True)
            self.end(depth)

    def card(self, depth, bus, slot, card, function=0):
        (kind, ids, name), devices = card
        self.put(depth, "PCIDev", {
            "pci_busid": f"0000:{bus:02x}:{slot:02x}.{function}",
            "pci_type": f"{kind} [{ids}] [0000:0000] 00", "pci_link_speed": "63.015385"})
        if name:
            self.info(depth + 1, "PCIDevice", name)
        for kind, name, infos in devices:
            self.put(depth + 1, "OSDev", {"name": name, "osdev_type": kind}, close=not infos)
            for key, value in infos.items():
                self.info(depth + 2, key, value)
            if infos:
                self.end(depth + 1)
        self.end(depth)

    def buses(self, items):
        """How many bus numbers the bridges among items, and those below them, take."""
        return sum(1 + self.buses(item) for item in items if isinstance(item, list))

    def below(self, depth, bus, items, level):
        """Cards stand on this bus; each bridge (a list) has a bus of its own below."""
        slot = 0
        for item in items:
            if isinstance(item, list):
                self.bus += 1
                last = self.bus + self.buses(item)
                self.put(depth, "Bridge", {
                    "bridge_type": "1-1", "depth": level,
                    "bridge_pci": f"0000:[{self.bus:02x}-{last:02x}]",
                    "pci_busid": f"0000:{bus:02x}:{slot:02x}.0",
                    "pci_type": "0604 [1000:c030] [0000:0000] 00", "pci_link_speed": "63.015385"})
                self.below(depth + 1, self.bus, item, level + 1)
                self.end(depth)
            elif isinstance(item, dict):  # functions of one card
                for function, card in item.items():
                    self.card(depth, bus, slot, card, function)
            else:
                self.card(depth, bus, slot, item)
            slot += 1

    def host_bridge(self, depth, items):
        self.bus = -(-(self.bus + 1) // 16) * 16 if self.bus else 0
        first, last = self.bus, self.bus + self.buses(items)
        self.put(depth, "Bridge", {"bridge_type": "0-1", "depth": 0,
                                   "bridge_pci": f"0000:[{first:02x}-{last:02x}]"})
        self.below(depth + 1, first, items, 1)
        self.end(depth)


def host(name, cores_each, sockets):
    out = Writer(cores_each, len(sockets))
    everything = out.sets(0, out.pus, (1 << len(sockets)) - 1)
    out.lines += ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
                  '<topology version="2.0">']
    out.put(1, "Machine", {"os_index": 0} | everything | {
        "allowed_cpuset": everything["cpuset"], "allowed_nodeset": everything["nodeset"]})
    out.info(2, "HostName", name)
    for socket, bridges in enumerate(sockets):
        sets = out.sets(socket * cores_each, cores_each, 1 << socket)
        out.put(2, "Package", {"os_index": socket} | sets)
        out.put(3, "NUMANode", {"os_index": socket} | sets | {"local_memory": 1 << 38}, close=True)
        out.cores(3, socket)
        for items in bridges:
            out.host_bridge(3, items)
        out.end(2)
    out.end(1)
    out.lines += ["</topology>", ""]
    return "\n".join(out.lines)


def hgx():
    """Four switches with two GPUs and two NICs each, all equally near; storage on cards of its own."""
    def switch(i):
        return [[[gpu(2 * i)], [gpu(2 * i + 1)], [(CX7, [rdma(f"mlx5_{2 * i}"), net(f"ibs{2 * i}")])],
                 [(CX7, [rdma(f"mlx5_{2 * i + 1}"), net(f"ibs{2 * i + 1}")])]]]
    storage = [[{0: (CX6, [rdma("mlx5_8"), net("ens1f0")]), 1: (CX6, [rdma("mlx5_9", 1), net("ens1f1")])}],
               [(VGA, [])]]
    return host("hgx", 16, [[switch(0), switch(1), storage], [switch(2), switch(3)]])


def efa(name, nics_each):
    """A GPU and its EFA cards on a host bridge of their own; ENA for everything else."""
    count = 0

    def root(i):
        nonlocal count
        cards = [[gpu(i)]]
        for _ in range(nics_each):
            cards.append([(EFA, [rdma(f"rdmap{count}s0")])])
            count += 1
        return [cards]
    nodes = [[root(i) for i in range(4 * node, 4 * node + 4)] for node in (0, 1)]
    return host(name, 8, [[[[(ENA, [net("ens5")])]]] + nodes[0], nodes[1]])


def one_nic_for_two():
    """Two sockets, on each a switch with two GPUs and one NIC."""
    def switch(i):
        return [[[gpu(2 * i)], [gpu(2 * i + 1)], [(CX7, [rdma(f"mlx5_{i}"), net(f"ens{i}")])]]]
    return host("one-nic", 8, [[switch(0)], [switch(1)]])


def no_gpu():
    """A CPU host: two RoCE rails on node 0, one on node 1; one port is down."""
    def card(i, *states):
        return [[(CX6, [rdma(f"mlx5_{i}", *states), net(f"ens{i}")])]]
    return host("no-gpu", 8, [[card(0), card(1)], [card(2), card(3, 1)]])


def bond():
    """Two ports of one card bonded: one RDMA device, on the first function; two slaves."""
    mac = "b8:3f:d2:00:00:01"
    card = {0: (CX6, [rdma("mlx5_bond_0"), net("ens1f0", mac)]), 1: (CX6, [net("ens1f1", mac)])}
    return host("bond", 4, [[[[[gpu(0)], [gpu(1)], [card]]], [[(CX6, [net("eno1")])]]]])


def nested():
    """One switch, two leaves: each GPU has a NIC on its own leaf, in crossed order."""
    return host("nested", 4, [[[[
        [[gpu(0)], [(CX7, [rdma("mlx5_7")])]],
        [[gpu(1)], [(CX7, [rdma("mlx5_3")])]]]]]])


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    files = {"hgx": hgx(), "p5": efa("p5", 4), "p5en": efa("p5en", 2), "one_nic": one_nic_for_two(),
             "no_gpu": no_gpu(), "bond": bond(), "nested": nested()}
    for name, text in files.items():
        with open(os.path.join(folder, name + ".xml"), "w", encoding="ascii") as out:
            out.write(text)


main()
