#include "runtime/comm/process/Exchange.h"

namespace sheaf::comm {

std::string pack(const Contribution& contribution) {
  return Packer()
      .number(static_cast<uint64_t>(contribution.kind))
      .string(contribution.what)
      .string(contribution.message)
      .bytes();
}

std::optional<Contribution> unpackContribution(const std::string& bytes) {
  Unpacker unpacker(bytes);
  uint64_t kind = unpacker.number();
  Contribution contribution;
  contribution.what = unpacker.string();
  contribution.message = unpacker.string();
  if (!unpacker.complete() || kind < 1 || kind > static_cast<uint64_t>(ExchangeKind::kLeave)) return std::nullopt;
  contribution.kind = static_cast<ExchangeKind>(kind);
  return contribution;
}

bool Exchange::add(int64_t process, Contribution contribution) {
  std::optional<Contribution>& part = parts_[static_cast<size_t>(process)];
  if (part) return false;
  if (present_++ == 0) began_ = Clock::now();
  part = std::move(contribution);
  return true;
}

std::vector<int64_t> Exchange::missing() const {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < parts_.size(); ++i)
    if (!parts_[i]) missing.push_back(static_cast<int64_t>(i));
  return missing;
}

std::string Exchange::what() const {
  for (const auto& part : parts_)
    if (part) return part->what;
  return {};
}

bool Exchange::leaves(int64_t process) const {
  const std::optional<Contribution>& part = parts_[static_cast<size_t>(process)];
  return part && part->kind == ExchangeKind::kLeave;
}

int64_t Exchange::mismatch() const {
  for (size_t i = 1; i < parts_.size(); ++i)
    if (parts_[i]->kind != parts_[0]->kind || parts_[i]->what != parts_[0]->what) return static_cast<int64_t>(i);
  return -1;
}

std::vector<std::string> Exchange::messages() const {
  std::vector<std::string> messages;
  for (const auto& part : parts_) messages.push_back(part->message);
  return messages;
}

uint64_t Exchange::messageBytes() const {
  uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->message.size();
  return bytes;
}

}  // namespace sheaf::comm
