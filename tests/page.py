# SPDX-License-Identifier: Apache-2.0
"""What must be seen on the page of `weightsync plan --html`.

page.py manifests T R                    writes a pair of manifests with hostile names, and one that is refused
page.py NAME BROWSER.log                 checks what a browser made of NAME.html (NAME.dom) against `plan --json`
                                         (NAME.json) and `simulate --json` (NAME.played)
"""
import json
import sys
from html.parser import HTMLParser

HOSTILE = "</script><script>console.error('in')</script><img src=x onerror=console.error(1)>\"'&<!-- data -->\u2028"


def manifest(side, axis, ranks, tensors):
    names = ["%d%s" % (i, HOSTILE) for i in range(tensors)]
    return {
        "ws_manifest": 1, "side": side, "framework": side + HOSTILE, "model": "model " + HOSTILE, "world": ranks,
        "tensors": [{"name": name, "dtype": "bf16", "shape": [4096, 64 + i]} for i, name in enumerate(names)],
        "meshes": {"all": {"axes": [[axis, ranks]], "order": "row"}},
        "params": [{"p": name, "x": ["s", ["t", name], 0, axis]} for name in names],
    }


def write_manifests(trainers, rollouts):
    for name, made in (("many-T", manifest("trainer", "dp", trainers, 3)), ("many-R", manifest("rollout", "tp", rollouts, 3)),
                       ("refused-T", manifest("trainer", "dp", 4, 3)), ("refused-R", manifest("rollout", "tp", 2, 5))):
        with open(name + ".json", "w") as file:
            json.dump(made, file)


class Seen(HTMLParser):
    """Elements with an id, and <body>: their attributes and their text."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.text, self.open, self.scripts, self.images = {}, {}, [], 0, 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.scripts += tag == "script"
        self.images += tag == "img"
        name = attributes.get("id") or (tag if tag == "body" else None)
        if name:
            self.attributes[name] = attributes
        if tag not in ("meta", "input", "img"): # the rest of what a browser writes down is closed
            self.open.append((tag, name))

    def handle_endtag(self, tag):
        while self.open and tag in [one for one, _ in self.open]:
            if self.open.pop()[0] == tag:
                break

    def handle_data(self, text):
        for _, name in self.open:
            if name:
                self.text[name] = self.text.get(name, "") + text

    def number(self, name, key):
        return float(self.attributes[name]["data-" + key])


def exact(bytes_):
    return "{:,}".format(bytes_).replace(",", "\u202f")


def member(plan, index):
    rank = index - plan["trainers"]
    return "trainer %d" % index if rank < 0 else "rollout %d.%d" % divmod(rank, plan["replica_ranks"])


def check_plan(seen, plan, played, done):
    trainers, rollouts = plan["trainers"], plan["members"] - plan["trainers"]
    forwarders = plan["replica_ranks"] * (plan["replicas"] - 1) if plan["fanout"] == "replica" else 0
    senders = trainers + forwarders
    assert seen.number("matrix", "columns") == senders and seen.number("matrix", "rows") == rollouts
    assert seen.number("matrix", "cells") == senders * rollouts, "a cell for each pair of ranks"
    assert seen.number("matrix", "pairs") == plan["pairs"]
    assert seen.number("matrix", "bytes") == plan["wire_bytes"]
    assert seen.number("senders", "bytes") == plan["wire_bytes"] == seen.number("receivers", "bytes")
    assert seen.number("warnings", "count") == len(plan["warnings"])
    assert seen.number("buckets", "bytes") == plan["total_bytes"] - plan["forward_bytes"]
    nics = seen.number("senders", "bars") / senders
    assert forwarders or seen.number("senders", "most") * nics == plan["senders"]["bytes_max"]
    assert seen.number("receivers", "least") * nics == plan["receivers"]["bytes_min"]
    assert exact(plan["total_bytes"]) in seen.text["figures"], "the exact sum is on the page"
    assert seen.number("timeline", "lanes") == plan["members"] == len(done["tables"]["timeline"]) - 1
    assert abs(seen.number("timeline", "predicted") - played["predicted_s"]) < 1e-6, "as simulate says"
    for name in ("matrix", "senders", "receivers", "timeline", "buckets"):
        picture = done["pictures"][name]
        assert picture["whole"] > 500, "drawn"
        assert 0.97 < picture["again"] / picture["whole"] < 1.03, "the same after a closer look"
        assert picture["first"] != picture["last"] != picture["zoomed"], "arrows read other values"
    assert done["pictures"]["senders"]["first"].startswith("trainer 0"), done["pictures"]["senders"]
    assert done["pictures"]["matrix"]["last"].startswith(
        "%s \u2192 %s:" % (member(plan, senders - 1), member(plan, plan["members"] - 1)))
    members = done["tables"]["nics"]
    assert len(members) == plan["members"] + 1
    assert sum(int(row[3].replace("\u202f", "")) for row in members[1:]) == plan["total_bytes"]
    assert len(done["tables"]["buckets"]) == plan["buckets"] + 1
    assert sum(int(row[1].replace("\u202f", "")) for row in done["tables"]["shapes"][1:5]) == plan["boxes"]


def check_refused(seen, done):
    assert "hidden" not in seen.attributes["findings"] and "hidden" in seen.attributes["matrix"]
    faults = done["tables"]["findings"][1:]
    count = sum(1 + int(row[2].split("(and ")[1].split()[0] if row[2].endswith("alike)") else 0) for row in faults)
    assert count == seen.number("findings", "count")
    assert "missing" in {row[0] for row in faults} and {row[1] for row in faults} == {"3" + HOSTILE, "4" + HOSTILE}, faults
    assert "Refused: %d faults" % count in seen.text["verdict"]


def read(name):
    with open(name, encoding="utf-8") as file:
        return file.read()


def main():
    name = sys.argv[1]
    page, dom, plan, log = (read(file) for file in (name + ".html", name + ".dom", name + ".json", sys.argv[2]))
    assert log == "", "the console says: " + log
    for word in ("http:", "https:", "src=", "url(", "@import", "fetch("):
        assert word not in page.replace(HOSTILE, "").replace("img src=x", ""), "the page reaches out: " + word
    seen = Seen(dom)
    assert seen.attributes["body"].get("data-shown") == "yes", "the page's script came to its end"
    assert seen.scripts == 3 and seen.images == 0, "a name became HTML"
    done = json.loads(seen.attributes["body"]["data-seen"])
    if name not in ("two_ranks", "fan_out"):
        assert seen.text["model"] == "model " + HOSTILE, seen.text["model"]
    if name != "refused":
        check_plan(seen, json.loads(plan), json.loads(read(name + ".played")), done)
    else:
        check_refused(seen, done)
    print("ok page: %s: pictures, tables and sums as in the plan, nothing said on the console" % name)


if sys.argv[1] == "manifests":
    write_manifests(int(sys.argv[2]), int(sys.argv[3]))
else:
    main()
