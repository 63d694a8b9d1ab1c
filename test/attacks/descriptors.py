"""Jobs whose processes may open few files: each ends in order, or with a message and within the limit."""
import concurrent.futures
import itertools
import resource

from common import Processes, tally, text

LIMIT, AT_ONCE = 3, 3
LIMITS, COUNTS, WAYS = range(4, 40), (1, 2, 4), ("memory", "sockets")


def one(session, descriptors, count, way):
    more = (lambda rank: {"SHEAF_HOST": rank}) if way == "sockets" else (lambda rank: {})
    return Processes(session, count, 4, limit=LIMIT, more=more, limits={resource.RLIMIT_NOFILE: descriptors}).ends(1.25 * LIMIT + 10)


def few(session):
    tries = list(itertools.product(LIMITS, COUNTS, WAYS))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda t: one(session, *t), tries))
    bad = [t for t, ends in zip(tries, results) if not all(e.good or e.code == 127 and e.text for e in ends)]
    # The dynamic linker says itself that it cannot open a library, with 127.
    ends = [e for each in results for e in each]
    linker = sum(e.code == 127 and bool(e.text) for e in ends)
    counts = tally([e for e in ends if not (e.code == 127 and e.text)])
    silent = sum(e.code == 1 and "Too many open files" not in e.text for e in ends)
    return {"tries": len(tries), "bad": len(bad), "text": f"processes: {text(counts)}, {linker} not loaded; {silent} errors do not name the "
            f"limit" + (f"; bad (descriptors, processes, way): {bad[:6]}" if bad else "")}


ATTACKS = {"descriptors": few}
