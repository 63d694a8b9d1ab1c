// Paths that tests read from. `sheaf_test_paths` in test/CMakeLists.txt defines them in a generated file per test. No
// other file depends on where the tree is, so that ccache can reuse objects in another clone.
#pragma once

namespace sheaf::paths {

extern const char* const kModels;           // folder of the unpacked models, build/models
extern const char* const kLibraries;        // folder of the device and transport libraries
extern const char* const kDeviceLibrary;    // file of the device library under test
extern const char* const kEmulatedLibrary;  // file of the emulated CUDA device
extern const char* const kLitTests;         // folder of a component's lit tests
extern const char* const kLosses;           // file: losses by PyTorch
extern const char* const kOnnxPage;         // file: docs/onnx.md
extern const char* const kPlanFormat;       // file: docs/plan-format.md
extern const char* const kOnnxNodeTests;    // folder of ONNX's node tests
extern const char* const kAttributeCases;   // file: combinations of attributes
extern const char* const kAttributes;       // file: the attributes of ONNX's schemas

}  // namespace sheaf::paths
