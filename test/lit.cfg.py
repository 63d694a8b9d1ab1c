"""lit: every .mlir, .test and .onnxtext file below test/ whose RUN lines name our tools.

Substitutions: %models is the folder of unpacked models (test/models/unpack.py); %tools the folder of our programs; %t a scratch path of the test's own. Features: `asan`, `tsan`.
"""
import os

import lit.formats

config.name = "sheaf"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test", ".onnxtext"]
config.test_source_root = os.path.dirname(__file__)
config.excludes = ["models", "Inputs"]

# FileCheck's lines are easier to read one below the other when a test fails.
config.environment["FILECHECK_OPTS"] = "--dump-input-filter=error"
config.environment["PATH"] = os.pathsep.join(
    [config.sheaf_tools, config.llvm_tools, config.environment.get("PATH", "")])
for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]

config.substitutions.append(("%models", os.path.join(os.path.dirname(config.test_source_root), "build", "models")))
config.substitutions.append(("%tools", config.sheaf_tools))
if config.sheaf_sanitize:
    config.available_features.add({"address": "asan", "thread": "tsan"}[config.sheaf_sanitize])
