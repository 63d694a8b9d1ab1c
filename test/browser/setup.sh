#!/usr/bin/env bash
# Installs what the tests in a browser need and is missing: Chromium and its driver from Debian, and the packages that
# test/skips.py names for the Python of a virtual environment, which is made.
#
#     test/browser/setup.sh VENV/bin/python
set -euo pipefail
python=$1
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  echo "setup: installing with apt: chromium chromium-driver python3-venv"
  "${as_root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium chromium-driver python3-venv >/dev/null
fi
if ! "$python" -c "import selenium, axe_core_python, perfetto, netron, onnx" 2>/dev/null; then
  echo "setup: installing Selenium, axe-core-python, perfetto, netron and onnx for $python"
  [ -x "$python" ] || python3 -m venv "${python%/bin/python}"
  "$python" -m pip install -q selenium axe-core-python perfetto netron onnx
fi
