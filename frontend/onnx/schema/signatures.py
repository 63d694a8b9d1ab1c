#!/usr/bin/env python3
"""Writes Signatures.inc: the attributes, and the numbers of inputs and outputs, of each version of ONNX's operators.

    signatures.py Changelog.md VERSION ContribOperators.md VERSION > Signatures.inc

Changelog.md is docs/Changelog.md of onnx/onnx, ContribOperators.md is docs/ContribOperators.md of
microsoft/onnxruntime. A VERSION is the tag or commit of the file, which the head of Signatures.inc names.
"""
import html
import re
import sys

# The letter of an attribute's type in a row; importer/Signatures.cpp has the same.
LETTERS = {"float": "f", "int": "i", "string": "s", "tensor": "t", "graph": "g", "sparse_tensor": "p", "type_proto": "y",
           "list of floats": "F", "list of ints": "I", "list of strings": "S", "list of tensors": "T",
           "list of graphs": "G", "list of sparse_tensors": "P", "list of type_protos": "Y"}
DOMAINS = "", "ai.onnx.preview.training", "com.microsoft"
MANY = "kMany"

# Rows that differ from the documents, each with the reason.
MENDED = {
    # Opset 21 deprecated it, so it is documented without a signature, but models have it. The row is that of
    # onnx/defs/nn/old.cc.
    ("", "GroupNormalization", 18): ("epsilon:f num_groups:i!", 3, 3, 1, 1),
}
# Operators whose schema calls AllowUncheckedAttributes(), which the documents leave out. ONNX's LayerNormalization does
# so for graphs of ONNX Runtime, where the operator was before.
UNCHECKED = {("", "LayerNormalization")} | {("com.microsoft", name) for name in (
    "BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "EPContext", "QOrderedLayerNormalization", "Snpe")}


def attributes(section):
    """The attributes as "name:letter", sorted by name; "!" follows a required one."""
    found = []
    for name, text in re.findall(r"<dt><tt>(.*?)</tt> : (.*)", section):
        kind, _, rest = text.removesuffix("</dt>").partition(" (")
        found.append(f"{name}:{LETTERS[kind]}" + ("!" if rest == "required)" else ""))
    return " ".join(sorted(found))


def count(heading, section):
    """The smallest and the largest number of inputs or outputs."""
    if found := re.search(r"\((\d+) - (.+)\)", html.unescape(heading)):
        return int(found[1]), MANY if found[2] == "∞" else int(found[2])
    number = section.count("<dt>")
    return number, number


def operators(text):
    """(domain, name, since) and the row of each operator that a document describes."""
    for entry in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        title = re.search(r"\*\*([\w.]+?)(?:-(\d+))?\*\*(.*)", entry)
        domain, _, name = title[1].rpartition(".")
        version = re.search(r"since version (\d+) of", entry)
        if domain not in DOMAINS or not version:  # experimental operators have no version
            continue
        key = domain, name, int(title[2] or version[1])
        if key in MENDED:
            yield key, MENDED[key]
            continue
        if "(deprecated)" in title[3]:  # documented without a signature
            continue
        sections = {"Attributes": "", "Inputs": (0, 0), "Outputs": (0, 0)}
        for heading, section in re.findall(r"^#### (.*)\n((?:(?!#### ).*\n?)*)", entry, flags=re.MULTILINE):
            kind = heading.split(" ")[0]
            if kind == "Attributes":
                sections[kind] = attributes(section)
            elif kind in sections:
                sections[kind] = count(heading, section)
        more = " ..." if key[:2] in UNCHECKED else ""
        yield key, ((sections["Attributes"] + more).strip(), *sections["Inputs"], *sections["Outputs"])


def main():
    onnx, onnx_version, runtime, runtime_version = sys.argv[1:]
    rows = {}
    for path in onnx, runtime:
        with open(path, encoding="utf-8") as file:
            rows.update(operators(file.read()))
    print(f"// Written by signatures.py from docs/Changelog.md of onnx/onnx ({onnx_version})\n"
          f"// and docs/ContribOperators.md of microsoft/onnxruntime ({runtime_version}).\n"
          "// Domain, name, first opset, attributes (\"...\": and any others), and the smallest and largest numbers of inputs\n"
          "// and of outputs.")
    for (domain, name, since), (given, *counts) in sorted(rows.items()):
        print(f'{{"{domain}", "{name}", {since}, "{given}", {", ".join(map(str, counts))}}},')


if __name__ == "__main__":
    main()
