#!/usr/bin/env python3
"""Opens a page of `sheaf report` in Chromium and goes through every view, by pointer and by keys: what is selected in one is marked in
the others, nothing is logged as an error, axe finds no serious fault in either theme, and no two texts overlap.

    python check_page.py REPORT.html [--screenshots FOLDER] [--timings]

Needs selenium and axe_core_python. Exits with 1 at the first expectation that does not hold.
"""
import argparse
import json
import pathlib
import sys
import time

from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WIDTH, HEIGHT = 1280, 800
SECONDS = 60  # for what is waited for


class Wrong(Exception):
    pass


def expect(condition, message):
    if not condition:
        raise Wrong(message)


def chromium(width=WIDTH, height=HEIGHT):
    """Without a GPU, and without a network but this machine's."""
    options = Options()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", f"window-size={width},{height}",
                     "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument(f"--{argument}")
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    return driver


class Page:
    def __init__(self, driver, path, screenshots=None):
        self.driver, self.screenshots = driver, screenshots
        driver.get(pathlib.Path(path).resolve().as_uri())
        self.wait("return document.documentElement.dataset.ready === 'all'", "the page is not ready")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, message):
        end = time.monotonic() + SECONDS
        while not self.run(script):
            errors = self.errors()
            expect(not errors, f"{message}: {errors}")
            expect(time.monotonic() < end, f"{message} after {SECONDS} s: {script}")
            time.sleep(0.05)

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def open(self, name):
        self.find(f"#tab-{name}").click()
        expect(self.find(f"#view-{name}").is_displayed(), f"the view {name} does not open")
        self.settle()

    def settle(self):
        """Two frames later all is drawn."""
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));")

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def click_at(self, selector, x, y):
        """At a place counted from the element's upper left corner."""
        box = self.run("const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.width, b.height]", selector)
        ActionChains(self.driver).move_to_element_with_offset(self.find(selector), round(x - box[0] / 2), round(y - box[1] / 2)).click().perform()
        self.settle()

    def selection(self):
        return self.run("const s = sheaf.selection; return {item: s.item, ops: s.ops.size, buffers: s.buffers.size, buckets: s.buckets.size}")

    def chosen(self, view):
        return self.run("return [...document.querySelectorAll(`#view-${arguments[0]} .chosen`)].length", view)

    def shot(self, name):
        if self.screenshots:
            self.driver.save_screenshot(str(pathlib.Path(self.screenshots) / f"{name}.png"))

    def colours(self, selector):
        """How many colours a canvas has: one that was not drawn has one."""
        return self.run("""const c = document.querySelector(arguments[0]), copy = new OffscreenCanvas(c.width, c.height).getContext("2d", {willReadFrequently: true});
                           copy.drawImage(c, 0, 0);
                           const d = copy.getImageData(0, 0, c.width, c.height).data, seen = new Set();
                           for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
                           return seen.size""", selector)


def check_time(page):
    """Timeline and memory: drawn, zoomed by wheel and keys, selected by pointer and keys."""
    page.open("time")
    for canvas in ("streams", "arena"):
        expect(page.colours(f"canvas.{canvas}") > 6, f"the canvas {canvas} is empty")
    whole = page.run("return sheaf.time.axis.span")
    # The longest op of the first stream, by a click into its middle.
    op, x, y = page.run("""const {plan, time} = sheaf, stream = time.timeline.streams[0], {ops} = plan.raw;
                           const op = stream.ops.reduce((a, b) => ops.time[b] > ops.time[a] ? b : a);
                           time.axis.show(ops.begin[op], ops.begin[op] + ops.time[op], 2);
                           return [op, time.axis.scale(ops.begin[op] + ops.time[op] / 2), stream.y + 15]""")
    page.click_at("canvas.streams", x, y)
    found = page.selection()
    expect(found["item"] == {"type": "op", "id": op} and found["buffers"] > 0, f"a click on op {op} selects {found}")
    title = page.find("#inspector .title").text
    expect(title == page.run("return sheaf.plan.label(arguments[0])", op), f"the inspector shows '{title}'")
    ActionChains(page.driver).move_to_element_with_offset(page.find("canvas.streams"), 3, 0).perform()
    for key, earlier in ((Keys.ARROW_RIGHT, False), (Keys.ARROW_LEFT, True)):
        before = page.selection()["item"]["id"]
        page.run("document.querySelector('.tracks').focus()")
        page.press(key)
        after = page.selection()["item"]["id"]
        expect(before != after and (after < before) == earlier, f"a key goes from op {before} to {after}")
    page.press("0", "f")
    near = page.run("return sheaf.time.axis.span")
    expect(near[1] - near[0] < whole[1] - whole[0], "F does not zoom to the selection")
    page.press("0")
    expect(page.run("return sheaf.time.axis.span") == whole, "0 does not show the whole step")
    page.press("w")
    span = page.run("return sheaf.time.axis.span")
    expect(abs((whole[1] - whole[0]) / (span[1] - span[0]) - 1.5) < 0.01, f"W zooms from {whole} to {span}")
    page.press("d")
    expect(page.run("return sheaf.time.axis.span")[0] > span[0], "D does not pan")
    page.run("""const c = document.querySelector("canvas.streams"), b = c.getBoundingClientRect();
                c.dispatchEvent(new WheelEvent("wheel", {deltaY: -200, clientX: b.left + 400, clientY: b.top + 40, bubbles: true, cancelable: true}))""")
    page.settle()
    nearer = page.run("return sheaf.time.axis.span")
    expect(nearer[1] - nearer[0] < span[1] - span[0], "the wheel does not zoom")
    page.press("0")
    buffer, x, y = page.run("""const {plan, time} = sheaf, {lives, buffers} = plan.raw, scale = time.memory.scaleY(document.querySelector("canvas.arena").clientHeight);
                               let best = 0;
                               const area = (l) => (lives.end[l] - lives.begin[l]) * buffers.bytes[lives.buffer[l]] * (buffers.persistent[lives.buffer[l]] || buffers.space[lives.buffer[l]] ? 0 : 1);
                               for (let l = 1; l < lives.buffer.length; ++l) if (area(l) > area(best)) best = l;
                               const b = lives.buffer[best];
                               time.axis.show(lives.begin[best], lives.end[best], 1);
                               return [b, time.axis.scale((lives.begin[best] + lives.end[best]) / 2), scale(buffers.offset[b] + buffers.bytes[b] / 2)]""")
    page.click_at("canvas.arena", x, y)
    found = page.selection()
    expect(found["item"]["type"] == "buffer" and found["ops"] > 0, f"a click on buffer {buffer} selects {found}")
    page.press("0")
    page.shot("memory")
    page.press("m")
    expect(page.run("return sheaf.time.memory.mode") == "kind" and page.colours("canvas.arena") > 3, "M does not show sums")
    page.press("m")
    page.press(Keys.ESCAPE)
    expect(page.selection()["item"] is None, "Escape leaves a selection")
    # A buffer of another space is shown there; a button leads back.
    for space in page.run("return sheaf.plan.raw.memory.spaces.map((s) => s.space)")[1:]:
        page.run("sheaf.selection.select({type: 'buffer', id: sheaf.plan.raw.buffers.space.indexOf(arguments[0])})", space)
        page.settle()
        expect(page.run("return sheaf.time.memory.space.space") == space and page.colours("canvas.arena") > 1, f"space {space} is not shown")
        page.press(Keys.ESCAPE)
        page.run("sheaf.time.spaces[0].click()")
        expect(page.run("return sheaf.time.memory.space.space") == 0, "the device is not shown again")
    waits = page.run("""const {plan} = sheaf; let count = 0, text = null;
                        for (let op = 0; op < plan.size; ++op) { const w = plan.waitBefore(op); if (w) ++count, text = plan.waitText(w); }
                        return [count, text]""")
    expect(waits[0] == 0 or "waits" in waits[1], f"waits {waits}")


def check_search(page):
    """A parameter by name: it is selected, and marked in the views of buckets, links and the graph."""
    name = page.run("return sheaf.plan.parameterName(sheaf.plan.raw.parameters.name.length - 2)")
    page.press("/")
    page.press(name)
    options = page.driver.find_elements(By.CSS_SELECTOR, "#results [role=option]")
    expect(options and name in options[0].text, f"the search for {name} finds {[o.text for o in options[:3]]}")
    page.press(Keys.ENTER)
    found = page.selection()
    expect(found["item"]["type"] == "parameter" and found["buckets"] == 1 and found["ops"] > 0, f"the search selects {found}")
    page.shot("search")
    page.open("buckets")
    expect(page.chosen("buckets") == 2, f"{page.chosen('buckets')} marked in the buckets")
    page.open("graph")
    expect(page.chosen("graph") > 0, "the parameter is not marked in the graph")
    collectives = page.run("return sheaf.plan.raw.communication.op.filter((op) => sheaf.selection.ops.has(op)).length")
    page.open("links")
    expect(page.chosen("links") == collectives, f"{page.chosen('links')} of {collectives} collectives are marked")
    # The timeline, hidden meanwhile, shows what is selected.
    page.run("sheaf.time.axis.show(sheaf.plan.period * 0.9, sheaf.plan.period * 0.91)")
    op = page.run("const op = sheaf.plan.raw.communication.op[0]; sheaf.selection.select({type: 'op', id: op}); return op")
    page.open("time")
    span, begin = page.run("return [sheaf.time.axis.span, sheaf.plan.raw.ops.begin[arguments[0]]]", op)
    expect(span[0] <= begin <= span[1], f"op {op} begins at {begin}, the timeline shows {span}")
    page.press("0")
    page.press(Keys.ESCAPE)
    expect(page.chosen("buckets") == 0, "a mark stays in the buckets")
    page.press("/")
    page.press("no such thing", Keys.ENTER, Keys.ESCAPE)
    expect(page.selection()["item"] is None, "something was found")


def check_buckets(page):
    page.open("buckets")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#view-buckets .bucket")
    expect(len(rows) == page.run("return sheaf.plan.raw.buckets.length"), f"{len(rows)} buckets")
    rows[0].find_element(By.CSS_SELECTOR, "button.name").click()
    page.settle()
    found = page.selection()
    expect(found["item"] == {"type": "bucket", "id": 0} and found["buffers"] > 0, f"a bucket selects {found}")
    page.shot("buckets")
    page.driver.find_elements(By.CSS_SELECTOR, "#inspector .entry")[0].click()
    page.settle()
    expect(page.selection()["item"]["type"] != "bucket", "what the inspector lists cannot be selected")
    page.press(Keys.ESCAPE)


def check_links(page):
    page.open("links")
    links = page.run("return sheaf.plan.raw.prediction.links.length")
    expect(len(page.driver.find_elements(By.CSS_SELECTOR, "#view-links .card")) == links, "not a card for each link")
    sums = page.run("""return [...document.querySelectorAll("#view-links table")].map((t) => t.tBodies[0].rows.length)""")
    expect(sums[1] == page.run("return sheaf.plan.raw.communication.op.length"), f"tables of {sums} rows")
    page.driver.find_elements(By.CSS_SELECTOR, "#view-links tbody button.name")[0].click()
    page.settle()
    expect(page.selection()["item"]["type"] == "op", "a collective cannot be selected")
    page.shot("links")
    page.press(Keys.ESCAPE)


def check_graph(page):
    """Rows open and close; a module marks instructions in the timeline; both graphs are shown."""
    page.open("graph")
    count = "return Number(document.querySelector('.graph-scroller').getAttribute('aria-rowcount'))"
    page.run("document.querySelector('.graph-scroller').focus()")
    page.press(Keys.HOME)
    page.press(Keys.ARROW_RIGHT)
    opened = page.run(count)
    page.press(Keys.ARROW_LEFT)
    closed = page.run(count)
    page.press(Keys.ARROW_RIGHT)
    expect(closed < opened == page.run(count), f"{opened} rows, {closed} with the first module closed")
    expect(page.run("return document.querySelectorAll('.graph-scroller path.edge').length") > 0, "no edges")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#view-graph .row.module .name .text")
    rows[min(3, len(rows) - 1)].click()
    page.settle()
    found = page.selection()
    expect(found["item"]["type"] == "module", f"a click on a module selects {found}")
    page.shot("graph")
    boxes = page.driver.find_elements(By.CSS_SELECTOR, "#view-graph .row:not(.module) .box")
    if boxes:
        boxes[0].click()
        page.settle()
        expect(page.selection()["item"]["type"] in ("label", "bucket"), f"a click on a node selects {page.selection()}")
    first, second = page.driver.find_elements(By.CSS_SELECTOR, "#view-graph .segmented button")
    sharded = page.run("return sheaf.graph.graph.size")
    first.click()
    page.settle()
    expect(page.run("return [...Array(sheaf.graph.graph.size).keys()].every((n) => !sheaf.graph.graph.mark(n))"), "gathers before sharding")
    second.click()
    page.settle()
    expect(page.run("return sheaf.graph.graph.size") == sharded, "the second graph is another one")
    page.press(Keys.ESCAPE)


def check_tables(page):
    page.open("stages")
    rows = page.run("return document.querySelectorAll('#view-stages .stages tbody tr').length")
    expect(rows == page.run("return sheaf.plan.raw.stages.length") and page.run("return document.querySelectorAll('#view-stages tr.own').length") == 1, f"{rows} stages")
    page.shot("stages")
    page.open("notes")
    counts = page.run("return [document.querySelectorAll('.warnings li').length, document.querySelectorAll('.decisions li').length]")
    expect(counts == page.run("return [sheaf.plan.raw.warnings.length, sheaf.plan.raw.decisions.length]"), f"warnings and decisions: {counts}")
    page.shot("notes")
    if page.run("return sheaf.plan.raw.measured !== null"):
        page.open("measured")
        rows = page.driver.find_elements(By.CSS_SELECTOR, "#view-measured table:first-of-type tbody tr")
        expect(len(rows) == 10, f"{len(rows)} differences")
        rows[0].find_element(By.CSS_SELECTOR, "button.name").click()
        page.settle()
        expect("measured" in page.find("#inspector dl").text, "the inspector has no measured time")
        page.shot("measured")
        page.press(Keys.ESCAPE)
    expect(len(page.driver.find_elements(By.CSS_SELECTOR, "[role=tab]")) in (6, 7), "not all views are there")


# Boxes of texts that are seen: pairs of them that overlap by more than a pixel either way. Canvases do not count: they place
# their texts by measure.
OVERLAPS = """
const texts = [];
const walker = document.createTreeWalker(document.querySelector("dialog[open]") || document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const host = node.parentElement;
  if (!node.textContent.trim() || host.closest("script, style, [hidden], dialog:not([open]), .unseen, .graph-scroller, .piece")) continue;
  if (!host.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true })) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  let box = range.getBoundingClientRect();
  let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
  for (let at = host; at; at = at.parentElement) {
    if (getComputedStyle(at).overflow === "visible") continue;
    const clip = at.getBoundingClientRect();
    left = Math.max(left, clip.left), top = Math.max(top, clip.top), right = Math.min(right, clip.right), bottom = Math.min(bottom, clip.bottom);
  }
  if (right - left > 1 && bottom - top > 1) texts.push([left, top, right, bottom, node.textContent.trim().slice(0, 40)]);
}
const found = [];
for (let i = 0; i < texts.length; ++i) for (let k = i + 1; k < texts.length; ++k) {
  const a = texts[i], b = texts[k];
  if (Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 1 && Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > 3) found.push([a[4], b[4]]);
}
return found.slice(0, 5)"""


def check_looks(page, name):
    """No overlapping texts and no serious fault by axe, in a view."""
    overlaps = page.run(OVERLAPS)
    expect(not overlaps, f"{name}: texts overlap: {overlaps}")
    faults = [f for f in Axe().run(page.driver)["violations"] if f["impact"] in ("serious", "critical")]
    expect(not faults, f"{name}: axe: " + json.dumps([[f["id"], f["help"], f["nodes"][0]["html"][:200], f["nodes"][0].get("failureSummary", "")[:300]] for f in faults]))


def check_themes(page):
    """Every view in both themes, with and without a selection."""
    views = [tab.get_attribute("id")[4:] for tab in page.driver.find_elements(By.CSS_SELECTOR, "[role=tab]")]
    for theme in ("light", "dark"):
        if page.run("return document.documentElement.dataset.theme") != theme:
            page.find("#theme").click()
        for selected in (False, True):
            if selected:
                page.run("sheaf.selection.select({type: 'op', id: Math.floor(sheaf.plan.size / 2)})")
            for view in views:
                page.open(view)
                check_looks(page, f"{view} ({theme})")
                page.shot(f"{view}-{theme}{'-selected' if selected else ''}")
        page.press(Keys.ESCAPE)
    page.press("?")
    check_looks(page, "keys")
    page.press(Keys.ESCAPE)
    page.find("#theme").click()
    page.open("time")


# Frames while the page zooms and pans: milliseconds from frame to frame, and of drawing alone.
FRAMES = """
const done = arguments[0], {time} = sheaf, frames = [], drawing = [];
time.axis.reset();
let last = null, i = 0;
const step = (now) => {
  if (last !== null) frames.push(now - last);
  last = now;
  if (i === 90) { time.axis.reset(); done([frames, drawing]); return; }
  if (i < 45) time.axis.scaleBy(1.12, sheaf.plan.period * 0.6);
  else time.axis.pan(i % 2 ? 0.06 : -0.05);
  const begin = performance.now();
  time.timeline.surface.drawNow();
  time.memory.surface.drawNow();
  drawing.push(performance.now() - begin);
  ++i;
  requestAnimationFrame(step);
};
requestAnimationFrame(step);"""


def timings(page):
    """First paint, and when the plan and the graph are there, in ms; frames while zooming."""
    page.open("time")
    paint = page.run("return Object.fromEntries(performance.getEntriesByType('paint').map((p) => [p.name, p.startTime]))")
    painted = page.run("return performance.getEntriesByName('painted')[0].startTime")
    frames, drawing = page.driver.execute_async_script(FRAMES)
    frames.sort()
    drawing.sort()
    return {"first_paint_ms": round(paint["first-contentful-paint"]), "plan_painted_ms": round(painted), "frame_ms_median": round(frames[len(frames) // 2], 1),
            "frame_ms_p95": round(frames[int(len(frames) * 0.95)], 1), "draw_ms_median": round(drawing[len(drawing) // 2], 1), "draw_ms_p95": round(drawing[int(len(drawing) * 0.95)], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("--screenshots", help="folder for pictures of the views")
    parser.add_argument("--timings", action="store_true", help="only measure, and print JSON")
    args = parser.parse_args()
    driver = chromium()
    try:
        page = Page(driver, args.page, args.screenshots)
        if not args.timings:
            for check in (check_time, check_search, check_buckets, check_links, check_graph, check_tables, check_themes):
                check(page)
        print(json.dumps(timings(page)))
        errors = page.errors()
        expect(not errors, f"the console has {errors}")
        network = page.run("return performance.getEntriesByType('resource').map((r) => r.name).filter((n) => !n.startsWith('data:'))")
        expect(not network, f"the page fetched {network}")
    except Wrong as error:
        page.shot("wrong")
        print(f"{args.page}: {error}", file=sys.stderr)
        return 1
    finally:
        driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
