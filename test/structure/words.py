#!/usr/bin/env python3
"""No name, comment, document, help or error text uses a word that has been replaced by a plain one.

    python3 test/structure/words.py [FOLDER]

Matching ignores case. Words are matched whole; in identifiers also as a part of camelCase or snake_case. A word may be
allowed in some places, each with the reason. README.md and docs/ do not use the retired words that docs/glossary.md lists in
its second table, except in code.
"""
import pathlib
import re
import subprocess
import sys

# Word or phrase (a regular expression): what to write instead.
WORDS = {
    # One word, one meaning.
    "peers?": "'baseline' for another system, 'rank' or 'process' for a participant",
    "beside": "'next to', 'compared with', 'during', 'overlapping' or 'in addition to'",
    "behind": "'after'; 'left behind' and 'falls behind' are fine",
    "meetings?": "'rendezvous' or 'barrier'",
    # Names that had to be decoded.
    "limit_?effects?": "'memory bound'",
    "peer_?steps?": "'baseline step'",
    "strangers?": "'other connections', 'unrelated processes'",
    "knock(?:s|ed|ing)?": "'connect' or 'hello'",
    "is_?tired": "'has timed out'",
    "fuse_?epilogues|measure_?epilogues|--epilogues": "'gemm epilogue': without the qualifier an epilogue is a plan's third part",
    # Vague verbs.
    "told": "'given', 'reported' or 'printed'; a variable is called by what it holds",
    "brings?|brought": "the operation: 'gathers', 'reads', 'returns'",
    "goes round": "'continues' or 'passes through'",
    "by turns": "'alternately'",
    "at hand": "'available', 'present' or 'current'",
    # Indirect negations.
    "(?<!there )(?:is|are|was|were) no(?! (?:longer|more|less|other|further|slower|larger|smaller|one)\\b)": "'is not a ...'",
    "(?:is|are) none of": "'is not one of'",
    "(?:has|have|had) not (?:a|an|the|its|one)": "'does not have'",
    "yet to be": "'not yet'",
    # Archaic or literary.
    "anew|afresh": "'again'",
    "likewise": "'the same' with what is the same, or 'also'",
    "nobody|somebody|everybody|whoever|whosoever": "the rank, thread, process, op or reader that is meant",
    "whence|thence|hence|hither|thither|hitherto": "'from', 'so', 'until now'",
    "nought|naught|aught": "'nothing' or '0'",
    "betwixt|amidst|whilst|upon|unto": "'between', 'among', 'while', 'on', 'to'",
    "lest": "'so that ... not'",
    "save (?:for|that)": "'except'",
    "thereof|whereof|wherein|whereby|whereupon|thereby": "a sentence of its own",
    "ought|shall": "'must' or 'should'",
    "forsooth|perchance|mayhap|verily": "nothing",
}

# Word: the places (a file or a folder) where it may stay, with the reason.
ALLOWED = {
    "peers?": {
        "runtime/comm": "ranks and processes that read each other's memory or hold the other end of a socket",
        "runtime/device": "GPUs and ranks that read each other's memory, as in cudaMemcpyPeer; NCCL's parameter `peer`",
        "test/emulation": "the emulated NCCL's parameter `peer`",
        "test/runtime": "tests of the above",
        "docs/cluster.md": "ranks that read each other's memory",
        "docs/cuda-runtime.md": "ranks that read each other's memory",
        "passes/schedule/profiles": "peer-to-peer transfers between GPUs",
    },
    "behind": {
        "passes/schedule/Construct.cpp": "computation that is behind schedule",
        "test/passes/train/mask_analysis_test.cpp": "a distance between tokens",
        "test/runtime/device_attention_test.cpp": "a distance between tokens",
    },
    "nobody|somebody|everybody|whoever|whosoever": {
        "test/runtime/io_formats_test.cpp": "a published test vector of XXH64",
    },
}
LEFT_OUT = ("LICENSE", "frontend/onnx/schema/", "tools/report/LICENSE.d3", "test/models/", "test/breaks/", "test/structure/words.")


def pattern(word):
    """The word by itself, or as a part of an identifier: beside, measuredBeside, beside_it, kBeside."""
    if re.fullmatch(r"[\w?|()_:\[\]]+", word):
        camel = "|".join(w[:1].upper() + w[1:] for w in re.split(r"\|", word))
        return re.compile(rf"(?i:(?<![A-Za-z])(?:{word})(?![A-Za-z]))|(?<=[a-z])(?:{camel})(?![a-z])")
    return re.compile(rf"(?i:(?<![A-Za-z]){word}(?![A-Za-z]))" if not word.startswith("(?<") else rf"(?i:{word}(?![A-Za-z]))")


GLOSSARY = "docs/glossary.md"
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)


def retired(text):
    """The glossary's second table: each retired phrase, with what to write instead."""
    rows = text.partition("\n## Retired words\n")[2].partition("\n## ")[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in rows.split("\n") if line.startswith("|")]
    return {phrase: instead for words, instead in cells[2:] for phrase in words.split(", ")}


def retired_words(root, names):
    """One text for each retired phrase in a page: whole words, ignoring case, also over the end of a line."""
    if GLOSSARY not in names:
        return []
    words = retired((root / GLOSSARY).read_text())
    found = [] if words else [f"{GLOSSARY}: the section 'Retired words' has no table"]
    pages = [n for n in names if n == "README.md" or (n.startswith("docs/") and n.endswith(".md") and n != GLOSSARY)]
    for name in pages:
        text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), (root / name).read_text())
        for phrase, instead in words.items():
            expression = r"(?i)(?<![\w-])" + r"\s+".join(map(re.escape, phrase.split())) + r"(?![\w-])"
            for match in re.finditer(expression, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{name}:{line}: '{' '.join(match.group(0).split())}': write '{instead}' ({GLOSSARY})")
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    names = [n for n in listed.split("\0") if n and not n.startswith(LEFT_OUT) and (root / n).is_file()]
    patterns = {word: pattern(word) for word in WORDS}
    wrong, used, lines = [], set(), 0
    for name in names:
        try:
            text = name + "\n" + (root / name).read_text()
        except UnicodeDecodeError:
            continue  # a binary file
        text = re.sub(r"(?i)\b(?:left|leaves?|leaving) behind\b|LeftBehind\b|\bfalls? behind\b", "", text)
        for number, line in enumerate(text.split("\n")):
            lines += 1
            for word, expression in patterns.items():
                if not (found := expression.search(line)):
                    continue
                places = [p for p in ALLOWED.get(word, {}) if name == p or name.startswith(p + "/")]
                used.update((word, place) for place in places)
                if not places:
                    where = f"{name}:{number}" if number else name
                    wrong.append(f"{where}: '{found.group(0).strip()}': write {WORDS[word]}")
    wrong += retired_words(root, names)
    if root == pathlib.Path(__file__).resolve().parents[2]:
        wrong += [f"test/structure/words.py: '{word}' does not occur in {place} and need not be allowed there"
                  for word, places in ALLOWED.items() for place in places if (word, place) not in used]
    print("\n".join(wrong) or f"{lines} lines in plain words")
    return 1 if wrong or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
