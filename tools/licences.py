"""The licences of what the wheel and the Debian package contain besides Sheaf itself."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What is compiled or linked into our programs: what it is, and the Debian package whose copyright file has its licence.
BUILT_IN = {
    "LLVM and MLIR": "libmlir-22-dev",
    "Protocol Buffers": "libprotobuf-dev",
    "xxHash": "libxxhash-dev",
    "zlib": "zlib1g",
    "Zstandard": "libzstd1",
    "FlatBuffers": "libflatbuffers-dev",
}


def copyright_of(package):
    """The text, with the licences to which it refers as files of every Debian system."""
    text = pathlib.Path("/usr/share/doc", package, "copyright").read_text(errors="replace")
    for name in sorted(set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text))):
        common = pathlib.Path("/usr/share/common-licenses", name)
        if common.exists():
            text += f"\n\n{'=' * 78}\n{common}\n\n{common.read_text(errors='replace')}"
    return text


def package_of(library):
    """The Debian package that has a library of this file name."""
    found = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True).stdout
    packages = sorted({line.split(":", 1)[0] for line in found.splitlines()})
    if len(packages) != 1:
        raise LookupError(f"{library} is of the Debian packages {packages}, not of one: whose licence is it under?")
    return packages[0]


def of_cuda(archive):
    """The licence of the CUDA toolkit that an archive of it comes from: the toolkit's own file, or its package's."""
    for folder in archive.parents:
        for pattern in ("EULA.txt", "dist-info/nvidia_cuda_runtime*/**/License.txt", "nvidia_cuda_runtime*/**/License.txt"):
            found = sorted(folder.glob(pattern)) if len(folder.parts) > 3 else []
            if found:
                return found[0].read_text(errors="replace")
    raise LookupError(f"no folder above {archive} has a licence of CUDA, whose runtime is linked into libsheaf_cuda.so; configure with "
                      "-DSHEAF_CUDA=OFF to leave that out")


def texts(build, libraries, gpu):
    """{what it is: its licence} of the libraries, by file name, and of what is built in; with CUDA's runtime if `gpu`."""
    cache = (build / "CMakeCache.txt").read_text()

    def entry(name):
        return pathlib.Path(re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE).group(1))

    found = {name: copyright_of(package) for name, package in BUILT_IN.items()}
    found["ONNX's schema"] = (ROOT / "frontend" / "onnx" / "schema" / "LICENSE").read_text()
    if gpu:
        found["the CUDA runtime"] = of_cuda(entry("SHEAF_CUDART_LIBRARY"))
    for library in libraries:
        found[library] = copyright_of(package_of(library))
    return found


def write(folder, build, libraries, gpu):
    """Writes them as files of a new folder; their names."""
    folder.mkdir(parents=True)
    names = []
    for what, text in texts(build, libraries, gpu).items():
        names.append(re.sub(r"[^A-Za-z0-9.+-]+", "-", what) + ".txt")
        (folder / names[-1]).write_text(text)
    return names
