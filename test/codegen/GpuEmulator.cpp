#include "test/codegen/GpuEmulator.h"

#include <cstdio>
#include <cstdlib>

#include "codegen/cpu/FlatImage.h"
#include "codegen/cpu/KernelCompiler.h"
#include "codegen/cuda/GpuRowKernel.h"
#include "codegen/cuda/PtxCompiler.h"
#include "llvm/Target/TargetMachine.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "test/codegen/KernelRunner.h"
#include "test/emulation/ThreadBlock.h"

using namespace mlir;

namespace sheaf::test {
namespace {

// What a thread knows of itself. The order of the members is that in which the kernels load them, a word each.
struct ThreadContext {
  int64_t thread, block;
  void (*barrier)();
  void (*warpBarrier)();
  uint32_t (*exchange)(uint32_t value, uint32_t distance);
  std::byte* shared;
};
enum Word : int32_t { kThread, kBlock, kBarrier, kWarpBarrier, kExchange, kShared };

uint32_t exchange(uint32_t value, uint32_t distance) {
  int lane = emulation::currentThread() % emulation::kWarp;
  return static_cast<uint32_t>(emulation::warpExchange(value, lane ^ static_cast<int>(distance)));
}

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "emulated kernels: %s\n", why.c_str());
  std::abort();
}

// `kernel(void** arguments, ThreadContext* context)` in place of a gpu.func.
class Conversion {
 public:
  explicit Conversion(gpu::GPUFuncOp from) : from(from), b(from.getContext()), pointer(type(0)) {}

  void run(ModuleOp into) {
    Location loc = from.getLoc();
    b.setInsertionPointToEnd(into.getBody());
    auto kernel = LLVM::LLVMFuncOp::create(
        b, loc, from.getName(),
        LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(b.getContext()), {pointer, pointer}));
    Block* entry = kernel.addEntryBlock(b);
    b.setInsertionPointToStart(entry);
    for (BlockArgument argument : from.getArguments())
      argument.replaceAllUsesWith(word(entry->getArgument(0), argument.getArgNumber(), argument.getType()));
    entry->getOperations().splice(entry->end(), from.getBody().front().getOperations());
    kernel.walk([&](Operation* op) { convert(op, entry->getArgument(1)); });
  }

 private:
  Type type(unsigned space) { return LLVM::LLVMPointerType::get(b.getContext(), space); }
  Value word(Value base, int32_t index, Type what) {
    Value at = LLVM::GEPOp::create(b, from.getLoc(), pointer, pointer, base, ArrayRef<LLVM::GEPArg>{index});
    return LLVM::LoadOp::create(b, from.getLoc(), what, at);
  }
  LLVM::CallOp call(Value context, Word function, Type result, ValueRange arguments) {
    SmallVector<Value> all{word(context, function, pointer)};
    all.append(arguments.begin(), arguments.end());
    auto signature = LLVM::LLVMFunctionType::get(result, SmallVector<Type>(arguments.getTypes()));
    return LLVM::CallOp::create(b, from.getLoc(), signature, all);
  }

  void convert(Operation* op, Value context) {
    Location loc = op->getLoc();
    Type none = LLVM::LLVMVoidType::get(b.getContext());
    b.setInsertionPoint(op);
    if (isa<gpu::ThreadIdOp, gpu::BlockIdOp>(op)) {
      Value id = word(context, isa<gpu::ThreadIdOp>(op) ? kThread : kBlock, b.getI64Type());
      op->getResult(0).replaceAllUsesWith(arith::IndexCastOp::create(b, loc, b.getIndexType(), id));
    } else if (isa<LLVM::AddressOfOp>(op)) {
      op->getResult(0).replaceAllUsesWith(word(context, kShared, op->getResult(0).getType()));
    } else if (auto shuffle = dyn_cast<gpu::ShuffleOp>(op)) {
      if (shuffle.getMode() != gpu::ShuffleMode::XOR) die("an exchange other than xor");
      auto result = call(context, kExchange, b.getI32Type(), {shuffle.getValue(), shuffle.getOffset()});
      shuffle.getShuffleResult().replaceAllUsesWith(result.getResult());
    } else if (isa<gpu::BarrierOp>(op)) {
      call(context, kBarrier, none, {});
    } else if (isa<NVVM::SyncWarpOp>(op)) {
      call(context, kWarpBarrier, none, {});
    } else if (isa<gpu::ReturnOp>(op)) {
      LLVM::ReturnOp::create(b, loc, ValueRange{});
    } else {
      return;
    }
    op->erase();
  }

  gpu::GPUFuncOp from;
  OpBuilder b;
  Type pointer;
};

}  // namespace

GpuEmulator::GpuEmulator(const codegen::DistinctPrograms& programs, int pressure) : symbols(programs.symbols) {
  std::unique_ptr<MLIRContext> context = codegen::createGpuContext();
  OwningOpRef<ModuleOp> source = ModuleOp::create(UnknownLoc::get(context.get())), target = source->clone();
  OpBuilder builder = OpBuilder::atBlockEnd(source->getBody());
  auto kernels = gpu::GPUModuleOp::create(builder, source->getLoc(), "kernels");
  codegen::GpuEmission emission;
  emission.roundsToBf16 = false;
  for (auto [program, symbol] : llvm::zip(programs.programs, symbols)) {
    mappings.push_back(codegen::chooseMapping(program, pressure));
    codegen::emitGpuRowKernel(program, mappings.back(), emission, symbol, kernels);
    auto shared = kernels.lookupSymbol<LLVM::GlobalOp>(symbol + "_shared");
    sharedBytes.push_back(
        shared ? static_cast<int64_t>(cast<LLVM::LLVMArrayType>(shared.getGlobalType()).getNumElements()) : 0);
  }
  if (failed(source->verify())) die("they do not verify");
  for (auto function : kernels.getOps<gpu::GPUFuncOp>()) Conversion(function).run(*target);

  std::string error;
  auto cpu = codegen::resolveCpuTarget("x86-64-v3", error);
  llvm::SmallVector<char, 0> object;
  if (failed(cpu) || failed(codegen::compileKernels(*target, *codegen::createTargetMachine(*cpu), object, error)))
    die(error);
  auto flat = codegen::flattenObject({object.data(), object.size()}, error);
  if (failed(flat)) die(error);
  image = std::make_unique<MappedImage>(flat->code, flat->entries);
}

GpuEmulator::~GpuEmulator() = default;

void GpuEmulator::launch(size_t program, void** arguments) const {
  using EmulatedKernel = void (*)(void**, const ThreadContext*);
  auto kernel = reinterpret_cast<EmulatedKernel>(image->find(symbols[program]));
  const codegen::Mapping& mapping = mappings[program];
  for (int64_t block = 0; block < mapping.grid; ++block)
    emulation::runBlock(static_cast<int>(mapping.threads()), sharedBytes[program], [&](int thread) {
      ThreadContext context{thread,
                            block,
                            [] { emulation::blockBarrier(); },
                            [] { emulation::warpBarrier(); },
                            exchange,
                            emulation::sharedMemory()};
      kernel(arguments, &context);
    });
}

}  // namespace sheaf::test
