#include "codegen/fusion/DistinctPrograms.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace sheaf::codegen {

FailureOr<DistinctPrograms> distinctPrograms(ArrayRef<train::FusionOp> fusions) {
  DistinctPrograms result;
  llvm::StringMap<size_t> known;
  for (train::FusionOp fusion : fusions) {
    auto [entry, inserted] = known.try_emplace(structuralKey(fusion), result.programs.size());
    if (inserted) {
      FailureOr<RowProgram> program = RowProgram::analyze(fusion);
      if (failed(program)) return failure();
      result.symbols.push_back("fusion_" + std::to_string(result.programs.size()));
      result.programs.push_back(std::move(*program));
    }
    result.programOf.push_back(entry->second);
  }
  return result;
}

}  // namespace sheaf::codegen
