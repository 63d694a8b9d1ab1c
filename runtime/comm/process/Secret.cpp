#include "runtime/comm/process/Secret.h"

#include <sys/random.h>

#include "runtime/base/Sha256.h"
#include "runtime/base/Text.h"
#include "runtime/comm/process/Connection.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {
namespace {

constexpr size_t kNonceBytes = 32;

}  // namespace

Expected<std::string> makeNonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    return Status::error(cat("no random numbers for SHEAF_SECRET: ", systemError()));
  return nonce;
}

std::string joinProof(std::string_view secret, std::string_view hello, std::string_view challenge) {
  const std::string said = Packer().string("sheaf: join").string(hello).string(challenge).bytes();
  return std::string(bytesOf(hmacSha256(secret, said)));
}

std::string welcomeProof(std::string_view secret, std::string_view hello, std::string_view challenge,
                         std::string_view members) {
  const std::string said = Packer().string("sheaf: welcome").string(hello).string(challenge).string(members).bytes();
  return std::string(bytesOf(hmacSha256(secret, said)));
}

}  // namespace sheaf::comm
