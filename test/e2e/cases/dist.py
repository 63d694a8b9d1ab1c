"""The packed runtime of `make dist`: moved elsewhere and started with an empty environment, it trains."""
import re
import shutil
import subprocess
import sys
import tarfile

from formats import read_log
from harness import ROOT, Case, Skip, expect, library_limits
from training import CONFIGS, data_arguments, expect_reference

# What every Linux system that has C++ programs has; the driver, cuBLAS, NCCL and MPI are the machine's own.
SYSTEM = r"^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcublasLt|libnccl|libmpi|libmpich)\.so"


def cases(session):
    yield Case("dist/trains-elsewhere", lambda: trains_elsewhere(session))


def trains_elsewhere(session):
    build, where = session.tools.parent, session.folder()
    cache = build / "CMakeCache.txt"
    if not cache.exists():
        raise Skip("the tools do not lie in a build folder")
    if re.search(r"^SHEAF_SANITIZE:\w+=.+$", cache.read_text(), re.MULTILINE):
        raise Skip("instrumented tools need their sanitizer's library")
    packed = subprocess.run([sys.executable, ROOT / "tools" / "dist.py", "--build", build, "--out", where / "out"],
                            capture_output=True, text=True)
    expect(packed.returncode == 0, packed.stderr)
    archive = next((where / "out").glob("*.tar.xz"))
    shutil.rmtree(archive.with_suffix("").with_suffix(""), ignore_errors=True)
    elsewhere = where / "elsewhere"
    elsewhere.mkdir()
    with tarfile.open(archive) as tar:  # a bare system's tar has no xz
        tar.extractall(elsewhere)
    runtime = next(elsewhere.iterdir())

    for file in [runtime / "bin" / "sheaf-run", *sorted((runtime / "lib").glob("libsheaf_*.so"))]:
        for name, path in needs(file):
            known = re.match(SYSTEM, name) or str(runtime) in path
            expect(known, f"{file.name} needs {name} => {path}")

    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, config.options)
    log = where / "log"
    run = subprocess.run([runtime / "bin" / "sheaf-run", plan, *data_arguments(config), "--steps", "5", "--log", log],
                         capture_output=True, text=True, env=library_limits())
    expect(run.returncode == 0, run.stderr)
    expect_reference(config, read_log(log)[0])
    # The archive has the libraries that are loaded on demand: several plans are compared, and --measure refuses a training plan.
    for command, code, said in (([plan, plan, "--ranks", "2", *data_arguments(config), "--steps", "1"], 0, ""),
                                ([plan, "--measure", where / "p.json"], 1, "is a training plan")):
        run = subprocess.run([runtime / "bin" / "sheaf-run", *command], capture_output=True, text=True, env=library_limits())
        expect(run.returncode == code and said in run.stderr, run.stderr)


def needs(file):
    """The libraries that a file needs, and where they are found; of MPI's transports only those that they name themselves,
    because what MPI needs in turn is its own affair."""
    if file.name.startswith("libsheaf_mpi_"):
        shown = subprocess.run(["readelf", "-d", file], capture_output=True, text=True).stdout
        return [(name, "") for name in re.findall(r"\(NEEDED\).*\[(.+)\]", shown)]
    lines = subprocess.run(["ldd", file], capture_output=True, text=True).stdout.splitlines()
    parts = [[part.strip() for part in line.partition("=>")] for line in lines]
    return [(name.rsplit("/", 1)[-1], path) for name, _, path in parts]
