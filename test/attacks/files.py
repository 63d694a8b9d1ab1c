"""Runs that write the same files at the same time, and ranks that write many: nothing is mixed, left behind or writable for others."""
from cases.written_files import INDEX, MODES, contents, evaluating, modes, pairs, saving
from common import Processes

PAIRS = 100


def report(tries, counts):
    return {"tries": tries, "bad": sum(number for what, number in counts.items() if what.startswith("bad: ")),
            "text": ", ".join(f"{number} {what.removeprefix('bad: ')}" for what, number in counts.items())}


def jobs(session, tries=10):
    """Two jobs of two processes each save to one index: all end in order, and one job's weights are there."""
    alone, counts = [], {"bad: folders without one job's files and nothing else": 0, "bad: processes with an error": 0}

    def job(where, rate):
        return Processes(session, 2, 4, "--lr", rate, "--save", where / INDEX, "--shard-size", "1KB", limit=20)

    for rate in ("1e-3", "2e-3"):
        where = session.folder()
        job(where, rate).ends(60)
        alone.append(contents(where))
    for _ in range(tries):
        where = session.folder()
        both = [job(where, rate) for rate in ("1e-3", "2e-3")]
        counts["bad: processes with an error"] += sum(e.code != 0 for one in both for e in one.ends(60))
        counts["bad: folders without one job's files and nothing else"] += contents(where) not in alone
    return report(tries, counts)


# 54,000 files.
RUNS = [(MODES[i if i < len(MODES) else 0], 1200) for i in range(5)]
ATTACKS = {
    "files-index": lambda session: report(PAIRS, pairs(session, saving(session), PAIRS)),
    "files-outputs": lambda session: report(PAIRS, pairs(session, evaluating(session), PAIRS)),
    "files-jobs": jobs,
    "files-modes": lambda session: report(len(RUNS), modes(session, RUNS)),
}
