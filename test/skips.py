"""The tests that may be skipped, and where. Any other skip fails `make test`: what was not run has shown nothing."""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
from typing import Callable


# Of the Python that SHEAF_BROWSER names.
BROWSER_PACKAGES = ("selenium", "axe_core_python", "perfetto", "netron", "onnx")


def browser_python():
    return os.environ.get("SHEAF_BROWSER") or "/opt/venv-browser/bin/python"


def importable_in_browser_python():
    try:
        return subprocess.run([browser_python(), "-c", f"import {', '.join(BROWSER_PACKAGES)}"], capture_output=True).returncode == 0
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class Machine:
    """What tests find here: `build` is the build folder, `sanitized` whether its tools are instrumented."""
    build: pathlib.Path
    sanitized: bool

    def has_gpu(self):
        return any(pathlib.Path("/dev").glob("nvidia[0-9]*"))

    def has_ptxas(self):
        """ptxas of a CUDA toolkit from 12.8 on, where codegen/cuda/Toolkit.cpp looks for it."""
        named = next((os.environ[v] for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)), None)
        folders = [f"{named}/bin"] if named else ["/usr/local/cuda/bin", os.environ.get("PATH", "")]
        ptxas = shutil.which("ptxas", path=os.pathsep.join(folders))
        if not ptxas:
            return False
        shown = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"release (\d+)\.(\d+)", shown)
        return version is not None and (int(version[1]), int(version[2])) >= (12, 8)

    def has_browser(self):
        """Chromium, its driver, and a Python with what the tests in it need: what `make test-browser` installs."""
        return importable_in_browser_python() and all(shutil.which(tool) for tool in ("chromium", "chromedriver"))

    def builds_emulated_device(self):
        return "libsheaf_cuda_emulated.so" in (self.build / "build.ninja").read_text()


@dataclasses.dataclass(frozen=True)
class Allowed:
    kind: str  # GoogleTest, lit or end to end
    tests: str  # matches the whole name: BINARY/SUITE.CASE, lit's name, or the end-to-end case's
    where: Callable[[Machine], bool]
    reason: str = ""  # part of the reason that the test gives; the reports of GoogleTest and lit have none


ALLOWED = (
    # There is no GPU.
    Allowed("GoogleTest", r"cuda_gpu_test/.*", lambda m: not m.has_gpu()),
    Allowed("GoogleTest", r"cuda_functions_gpu_test/Gpu\.IsThere", lambda m: not m.has_gpu()),
    # cuBLASLt chooses an algorithm by the whole shape, so that rows do depend on how many there are.
    Allowed("GoogleTest", r"cuda_functions_(gpu_)?test(_order_\w+)?/HalfGemm\.ARowOfAProductDoesNotDependOnHowManyThereAre",
            lambda m: True),
    # No Python is named for the readers of other projects, or for PyTorch and the wheel's tools.
    Allowed("end to end", r".*", lambda m: not os.environ.get("SHEAF_READERS"), "SHEAF_READERS names no Python"),
    Allowed("end to end", r".*", lambda m: not os.environ.get("SHEAF_PYTORCH"), "SHEAF_PYTORCH names no Python"),
    # Blocks of README that `make test` cannot type anywhere.
    Allowed("end to end", r"readme/blocks/sh-\d+", lambda m: True, "a cluster is needed|a bare Debian 12 is needed"),
    # There is no browser, or the Python for it lacks a package.
    Allowed("end to end", r"report/(browser/.*|perfetto-schema|netron|onnx-checker)", lambda m: not m.has_browser(), "no browser"),
    # There is no toolkit to compile for GPUs with.
    Allowed("GoogleTest", r"codegen_gpu_kernel_test/GpuKernel\.ImagesDoNotDependOnThreads", lambda m: not m.has_ptxas()),
    Allowed("end to end", r".*", lambda m: not m.has_ptxas(), "no ptxas of a CUDA toolkit"),
    # The emulated device is built where CUDA's headers are.
    Allowed("end to end", r".*", lambda m: not m.builds_emulated_device(), "libsheaf_cuda_emulated.so is not built: there is no CUDA toolkit"),
    # Only root can start processes of another user, whose limit of threads counts its own alone.
    Allowed("end to end", r"endings/threads", lambda m: os.getuid() != 0, "only root"),
    # ThreadSanitizer finds the race on which the test is built.
    Allowed("GoogleTest", r"cuda_test/EmulatedGpu\.GraphsOrderOnlyWhatTheirEdgesOrder", lambda m: m.sanitized),
    # Instrumented code refers to other objects, so that others are linked.
    Allowed("lit", r".*structure/linked\.test", lambda m: m.sanitized),
    # Instrumented tools are slow, keep shadow memory of their own and need their sanitizer's library.
    Allowed("end to end", r"(kernels|precision|kit)/.*", lambda m: m.sanitized, "instrumented (tools|devices) would take long|a large model"),
    Allowed("end to end", r"(memory/.*|endings/memory)", lambda m: m.sanitized, "shadow memory"),
    Allowed("end to end", r"(dist|installing)/.*", lambda m: m.sanitized, "their sanitizer's library"),
)


def is_allowed(kind, test, reason, machine, entries=ALLOWED):
    return any(e.kind == kind and re.fullmatch(e.tests, test) and re.search(e.reason, reason) and e.where(machine) for e in entries)
