"""The packed runtime of `make dist`: moved elsewhere and started with an empty environment, it trains."""
import re
import shutil
import subprocess
import sys
import tarfile

from formats import read_log
from harness import ROOT, Case, Skip, expect
from training import CONFIGS, data_arguments, expect_reference

# What every Linux system that has C++ programs has; the driver, cuBLAS and NCCL are the GPU machine's own.
SYSTEM = r"^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcublasLt|libnccl)\.so"


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
        for line in subprocess.run(["ldd", file], capture_output=True, text=True).stdout.splitlines():
            name, _, path = (part.strip() for part in line.partition("=>"))
            known = re.match(SYSTEM, name.rsplit("/", 1)[-1]) or str(runtime) in path
            expect(known, f"{file.name} needs {line.strip()}")

    config = CONFIGS["gpt2-tiny"]
    plan = session.plan(config.model, 2, 3, 8, config.options)
    log = where / "log"
    run = subprocess.run([runtime / "bin" / "sheaf-run", plan, *data_arguments(config), "--steps", "5", "--log", log],
                         capture_output=True, text=True, env={})
    expect(run.returncode == 0, run.stderr)
    expect_reference(config, read_log(log)[0])
