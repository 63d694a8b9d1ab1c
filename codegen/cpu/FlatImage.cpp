#include "codegen/cpu/FlatImage.h"

#include <limits>

#include "llvm/ADT/DenseMap.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/Object/ELFObjectFile.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace llvm::object;

namespace sheaf::codegen {
namespace {

constexpr uint64_t kAlignment = 64;

class Flattener {
 public:
  Flattener(const ELF64LEObjectFile& file, std::string& error) : file(file), error(error) {}

  FailureOr<FlatImage> run() {
    // Text first: an entry's offset is then independent of the constants after it.
    for (bool text : {true, false})
      for (const SectionRef& section : file.sections())
        if (failed(place(section, text))) return failure();
    for (const SectionRef& section : file.sections())
      if (failed(relocate(section))) return failure();
    for (const ELFSymbolRef symbol : file.symbols()) {
      if (symbol.getBinding() != llvm::ELF::STB_GLOBAL || symbol.getELFType() != llvm::ELF::STT_FUNC) continue;
      FailureOr<uint64_t> at = addressOf(symbol);
      llvm::Expected<StringRef> name = symbol.getName();
      if (failed(at)) return failure();
      if (!name) return fail(llvm::toString(name.takeError()));
      image.entries[name->str()] = *at;
    }
    return std::move(image);
  }

 private:
  LogicalResult fail(const Twine& message) {
    error = message.str();
    return failure();
  }

  LogicalResult place(const SectionRef& section, bool text) {
    ELFSectionRef elf(section);
    if (!(elf.getFlags() & llvm::ELF::SHF_ALLOC) || elf.getSize() == 0 || section.isText() != text) return success();
    llvm::Expected<StringRef> name = section.getName();
    if (!name) return fail(llvm::toString(name.takeError()));
    // Unwind tables: kernels do not throw.
    if (*name == ".eh_frame") return success();
    if ((elf.getFlags() & llvm::ELF::SHF_WRITE) || section.isBSS())
      return fail("kernels have writable data in " + *name);
    llvm::Expected<StringRef> contents = section.getContents();
    if (!contents) return fail(llvm::toString(contents.takeError()));
    uint64_t alignment = std::max<uint64_t>(kAlignment, section.getAlignment().value());
    image.code.resize(llvm::alignTo(image.code.size(), alignment));
    placed[section.getIndex()] = image.code.size();
    image.code.append(contents->data(), contents->size());
    return success();
  }

  FailureOr<uint64_t> addressOf(const SymbolRef& symbol) {
    llvm::Expected<section_iterator> section = symbol.getSection();
    if (!section) return fail(llvm::toString(section.takeError()));
    llvm::Expected<uint64_t> value = symbol.getValue();
    if (!value) return fail(llvm::toString(value.takeError()));
    auto at = *section == file.section_end() ? placed.end() : placed.find((*section)->getIndex());
    if (at == placed.end()) {
      llvm::Expected<StringRef> name = symbol.getName();
      return fail("a kernel refers to '" + (name ? *name : StringRef("?")) + "', which is not part of it");
    }
    return at->second + *value;
  }

  LogicalResult relocate(const SectionRef& section) {
    llvm::Expected<section_iterator> target = section.getRelocatedSection();
    if (!target) return fail(llvm::toString(target.takeError()));
    if (*target == file.section_end()) return success();
    auto base = placed.find((*target)->getIndex());
    if (base == placed.end()) return success();
    for (const RelocationRef& relocation : section.relocations()) {
      symbol_iterator symbol = relocation.getSymbol();
      if (symbol == file.symbol_end()) return fail("a relocation without a symbol");
      FailureOr<uint64_t> value = addressOf(*symbol);
      if (failed(value)) return failure();
      llvm::Expected<int64_t> addend = ELFRelocationRef(relocation).getAddend();
      if (!addend) return fail(llvm::toString(addend.takeError()));
      uint64_t place = base->second + relocation.getOffset();
      int64_t difference = static_cast<int64_t>(*value) + *addend - static_cast<int64_t>(place);
      switch (relocation.getType()) {
        case llvm::ELF::R_X86_64_PC32:
        case llvm::ELF::R_X86_64_PLT32:
          if (!llvm::isInt<32>(difference)) return fail("a kernel is too large for its relocations");
          llvm::support::endian::write32le(&image.code[place], static_cast<uint32_t>(difference));
          break;
        case llvm::ELF::R_X86_64_PC64:
          llvm::support::endian::write64le(&image.code[place], static_cast<uint64_t>(difference));
          break;
        default:
          return fail("a kernel has a relocation of type " + Twine(relocation.getType()) +
                      ", which depends on where it is loaded");
      }
    }
    return success();
  }

  const ELF64LEObjectFile& file;
  std::string& error;
  FlatImage image;
  llvm::DenseMap<uint64_t, uint64_t> placed;  // section index to offset
};

}  // namespace

FailureOr<FlatImage> flattenObject(StringRef object, std::string& error) {
  llvm::Expected<ELF64LEObjectFile> file = ELF64LEObjectFile::create(llvm::MemoryBufferRef(object, "kernels"));
  if (!file) {
    error = llvm::toString(file.takeError());
    return failure();
  }
  return Flattener(*file, error).run();
}

}  // namespace sheaf::codegen
