#!/usr/bin/env bash
# Installs what building and testing need and is missing. Idempotent: with everything there it takes a moment and is silent.
# Root or sudo; Debian 12's own archives only (LLVM 22 comes from its security archive). SHEAF_SETUP=skip leaves it out.
set -euo pipefail
[ "${SHEAF_SETUP:-}" = skip ] && exit 0

packages=(
  g++ cmake ninja-build ccache                            # compiler and build
  llvm-22-dev llvm-22-tools libmlir-22-dev mlir-22-tools  # MLIR, LLVM, lit, FileCheck
  libdnnl-dev                                             # GEMM
  libprotobuf-dev protobuf-compiler                       # the plan's and ONNX's format
  libxxhash-dev                                           # hashes of files (header only)
  libflatbuffers-dev flatbuffers-compiler                 # checkpoints of ONNX Runtime's training artifacts
  libgtest-dev libgmock-dev clang-format-14               # tests and format check
  node-d3                                                 # d3, inlined in the page of `sheaf report`
  libonnx-testdata                                        # tests: ONNX's own node tests
  libssl3                                                 # libcrypto, which SHEAF_SECRET loads
  python3 python3-pip                                     # lit, test drivers; tests: pip installs the wheel
  libzstd-dev zlib1g-dev lld patchelf                     # make wheel: linked with LLVM's archives
  dpkg-dev groff-base zsh                                 # Debian package; tests: man pages, completion
  libopenmpi-dev openmpi-bin libmpich-dev mpich           # --transport mpi; tests: their mpirun starts processes
)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian system; please see to these packages yourself: ${packages[*]}"
  exit 0
fi

installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
  awk '$1 == "installed" {printf "%s ", $2}' || true)"
missing=()
for package in "${packages[@]}"; do
  [[ $installed == *" $package "* ]] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "setup: installing with apt: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: this needs root or sudo" >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: done"
