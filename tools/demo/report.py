"""The demo's report: a chart of the loss as SVG, and a page with it, the memory of all stages and what was communicated."""
import html
import math

KINDS = ("parameters", "gradients", "optimizer", "gathered", "activations", "workspace")
STYLE = """
:root { --ink: #1d2733; --faint: #d6dce4; --dot: #9db4d3; --line: #1f5fa8; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --faint: #3a4350; --dot: #50698c; --line: #7fb0ea; --paper: #14181e; } }
"""


def mebibytes(count):
    return f"{count / 2**20:,.1f} MiB"


def mean(values):
    return math.fsum(values) / len(values)


def smooth(values, reach):
    """The mean of every value with its neighbours up to `reach` away, fewer at the ends."""
    return [mean(values[max(0, i - reach):i + reach + 1]) for i in range(len(values))]


def _ticks(low, high, about):
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= about)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def loss_chart(losses, title, note):
    """An SVG document: every step's loss as a dot, the mean of its neighbourhood as a line."""
    width, height, left, right, top, bottom = 860, 420, 64, 20, 56, 48
    low, high = 0.0, max(losses) * 1.05

    def x(step):
        return left + (width - left - right) * step / max(1, len(losses) - 1)

    def y(loss):
        return height - bottom - (height - top - bottom) * (loss - low) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
             f"<style>{STYLE} text {{ fill: var(--ink); }} svg {{ background: var(--paper); }}</style>",
             f'<text x="{left}" y="24" font-size="17" font-weight="600">{html.escape(title)}</text>',
             f'<text x="{left}" y="43">{html.escape(note)}</text>']
    for tick in _ticks(low, high, 8):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--faint)"/>'
                     f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0, max(1, len(losses) - 1), 10):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 20}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">step</text>')
    parts += [f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="1.6" fill="var(--dot)"/>' for i, v in enumerate(losses)]
    means = smooth(losses, 8)
    points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(means))
    parts.append(f'<polyline points="{points}" fill="none" stroke="var(--line)" stroke-width="2.5" stroke-linejoin="round"/>')
    parts.append(f'<text x="{x(len(losses) - 1) - 4:.1f}" y="{y(means[-1]) - 12:.1f}" text-anchor="end" font-weight="600">'
                 f"{mean(losses[-20:]):.3f}</text></svg>")
    return "\n".join(parts) + "\n"


def memory_rows(stages):
    """Header and rows of the memory table: one rank's bytes at each stage. stages: {stage: inspect's JSON}."""
    header = ["stage", *KINDS, "peak", "libraries"]
    rows = []
    for stage, summary in sorted(stages.items()):
        memory = summary["memory"]
        kinds = [mebibytes(memory["by_kind"].get(k, 0)) for k in KINDS]
        rows.append([str(stage), *kinds, mebibytes(memory["peak_bytes"]), mebibytes(memory["library_bytes"])])
    return header, rows


def communication_rows(stages):
    """Header and rows: what one rank's collectives carry in a step at each stage."""
    ops = ("all_gather", "reduce_scatter", "all_reduce")
    rows = []
    for stage, summary in sorted(stages.items()):
        cells = [str(stage)]
        for op in ops:
            chosen = [c["bytes"] for c in summary["communication"] if c["op"] == op]
            cells.append(f"{len(chosen)} x, {mebibytes(sum(chosen))}" if chosen else "-")
        rows.append(cells)
    return ["stage", *ops], rows


def text_table(header, rows):
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in [header, *rows])


def _html_table(header, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    return "<table>" + line(header, "th") + "".join(line(r, "td") for r in rows) + "</table>"


def page(chart, stages, facts, commands):
    """The whole report as HTML. facts: (name, value) pairs; commands: what to try next."""
    rows = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Sheaf: the demo's run</title><style>{STYLE}
body {{ font-family: sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 0.5rem 0 1.5rem; }}
th, td {{ padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid var(--faint); }}
dl {{ display: grid; grid-template-columns: max-content auto; gap: 0.2rem 1rem; }} dd {{ margin: 0; }}
pre {{ overflow-x: auto; padding: 0.7rem; border: 1px solid var(--faint); }}
</style></head><body>
<h1>A GPT on four ranks with ZeRO-3</h1>
<dl>{rows}</dl>
{chart}
<h2>Memory of one rank</h2>
<p>Each kind's largest simultaneous bytes; kinds share the arena, so the peak is less than their sum. Bytes are those of the
compiled plan, which lays the arena out before the run.</p>
{_html_table(*memory_rows(stages))}
<h2>Communication of one step</h2>
{_html_table(*communication_rows(stages))}
<h2>Next</h2>
<pre>{html.escape(chr(10).join(commands))}</pre>
</body></html>
"""
