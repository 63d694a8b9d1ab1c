// Checks the kernels of an untrusted plan, their images, and that a launch declares what its kernel does.
#include <set>
#include <string>

#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Verify.h"
#include "runtime/plan/leaves/KernelProgram.h"

namespace sheaf::plan {
namespace {

Status wrong(const std::string& what, const std::string& why) {
  return Status::error(cat(what, ": ", why));
}

Status checkEntry(const KernelImage& image, const KernelEntry& entry) {
  const std::string device = deviceOf(image);
  if (device == "cpu" || device == "host")
    return entry.offset() < image.code().size() || (device == "host" && entry.offset() == image.code().size())
               ? Status()
               : Status::error("lies outside its image");
  constexpr uint32_t kMostThreads = 1024;
  if (entry.threads() == 0 || entry.threads() > kMostThreads || entry.threads() % 32 != 0)
    return Status::error(cat("has ", entry.threads(), " threads a block, not a multiple of 32 up to 1024"));
  return entry.grid() >= 1 && entry.grid() <= INT32_MAX ? Status() : Status::error("has no valid grid");
}

const char* accessText(int access) {
  return access == READ ? "read" : access == WRITE ? "written" : "read and written";
}

class LaunchCheck {
 public:
  LaunchCheck(const Plan& plan, const Instruction& launch)
      : plan_(plan), launch_(launch), kernel_(plan.kernels(static_cast<int>(launch.kernel().kernel()))) {}

  Status run() const {
    for (int i = 0; i < launch_.operands_size(); ++i)
      if (launch_.operands(i).access() != kernel_.operand_access(i))
        return Status::error(cat("operand ", i, " is declared as ", accessText(launch_.operands(i).access()),
                                 ", kernel '", shortName(kernel_.symbol()), "' has it ",
                                 accessText(kernel_.operand_access(i))));
    for (int i = 0; i < launch_.operands_size(); ++i)
      for (int other = 0; other < launch_.operands_size(); ++other)
        if (kernel_.operand_access(i) != READ && other != i && overlap(i, other) && !inPlace(i, other))
          return Status::error(cat("operand ", i, " is written where operand ", other, " lies, and kernel '",
                                   shortName(kernel_.symbol()), "' does not allow that"));
    return {};
  }

 private:
  uint64_t begin(int i) const {
    const Operand& operand = launch_.operands(i);
    return plan_.buffers(static_cast<int>(operand.buffer())).offset() + operand.offset();
  }
  // One past the last byte: with `ranks`, of all ranks' places together.
  uint64_t end(int i, bool ranks) const {
    const Operand& operand = launch_.operands(i);
    return begin(i) + operand.bytes() + (ranks ? mostRankOffset(plan_, operand) : 0);
  }
  bool sameStride(int i, int other) const {
    return stridesOf(plan_, launch_.operands(i)) == stridesOf(plan_, launch_.operands(other));
  }
  // Whether they share bytes on a rank; those that move with the rank differently count with all their places.
  bool overlap(int i, int other) const {
    const bool ranks = !sameStride(i, other);
    return begin(i) < end(other, ranks) && begin(other) < end(i, ranks);
  }
  bool inPlace(int i, int other) const {
    return kernel_.in_place_size() > 0 && kernel_.in_place(i) != 0 && kernel_.in_place(i) == kernel_.in_place(other) &&
           kernel_.operand_access(other) == READ && begin(i) == begin(other) && sameStride(i, other);
  }

  const Plan& plan_;
  const Instruction& launch_;
  const Kernel& kernel_;
};

}  // namespace

Status verifyKernels(const Plan& plan) {
  if (plan.kernels_size() > 0 && plan.images_size() == 0)
    return wrong("images", cat("there is none for the plan's ", plan.kernels_size(), " kernels"));
  for (int i = 0; i < plan.kernels_size(); ++i) {
    const Kernel& kernel = plan.kernels(i);
    const std::string what = named("kernel", i, kernel.symbol());
    if (kernel.operand_access_size() != kernel.operand_bytes_size())
      return wrong(what, cat("it states what it does with ", kernel.operand_access_size(), " of its ",
                             kernel.operand_bytes_size(), " operands; compile the model again"));
    for (int access : kernel.operand_access())
      if (access < READ || access > READ_WRITE) return wrong(what, "an operand has no access");
    if (kernel.in_place_size() != 0 && kernel.in_place_size() != kernel.operand_bytes_size())
      return wrong(what, cat("it states of ", kernel.in_place_size(), " of its ", kernel.operand_bytes_size(),
                             " operands which may have one address"));
    if (Expected<KernelProgram> program = programOf(kernel); !program.ok())
      return wrong(what, program.status().message());
  }
  std::set<std::string> targets;
  for (int i = 0; i < plan.images_size(); ++i) {
    const KernelImage& image = plan.images(i);
    std::string what = named("image", i, image.target());
    if (deviceOf(image).empty()) return wrong(what, "its target is not cpu, cuda:sm_NN or host");
    if (!targets.insert(image.target()).second) return wrong(what, "another image has the same target");
    if (deviceOf(image) == "host" && (i == 0 || i + 1 < plan.images_size() || imageFor(plan, "cpu")))
      return wrong(what,
                   "it is for launches on the host: it must be the last image, after at least one other, in a plan "
                   "without an image for the CPU");
    if (image.entries_size() != plan.kernels_size())
      return wrong(what, cat("it has ", image.entries_size(), " entries for ", plan.kernels_size(), " kernels"));
    if (plan.kernels_size() > 0 && image.code().empty()) return wrong(what, "it has no code; compile the model again");
    for (int k = 0; k < image.entries_size(); ++k)
      if (Status sound = checkEntry(image, image.entries(k)); !sound.ok())
        return wrong(what, cat("the entry of kernel '", plan.kernels(k).symbol().substr(0, 40), "' ", sound.message()));
  }
  return {};
}

Status checkLaunch(const Plan& plan, const Instruction& launch) {
  return LaunchCheck(plan, launch).run();
}

}  // namespace sheaf::plan
