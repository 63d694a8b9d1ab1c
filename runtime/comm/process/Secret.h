// Proofs that both sides of the rendezvous know the job's secret, by HMAC-SHA-256. Each proof covers a nonce of either
// side and everything that was said, so one that was recorded is of no use in another handshake. OpenSSL's libcrypto
// does the arithmetic; it is loaded for this alone.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace sheaf::comm {

inline constexpr size_t kMinSecretBytes = 16;

// 32 random bytes of the kernel.
Expected<std::string> makeNonce();

class Secret {
 public:
  // An error if libcrypto is not on this machine. `text`: SHEAF_SECRET.
  static Expected<Secret> open(std::string text, const char* library = "libcrypto.so.3");

  // That a process may join; `hello` is its first message, which has its nonce, `challenge` the nonce of process 0.
  Expected<std::string> joinProof(std::string_view hello, std::string_view challenge) const;
  // That the answer comes from process 0; `members` is what it says.
  Expected<std::string> welcomeProof(std::string_view hello, std::string_view challenge,
                                     std::string_view members) const;
  // HMAC-SHA-256 (RFC 2104) of a message, with this secret as the key.
  Expected<std::string> hmac(std::string_view message) const;
  // False for an error. Takes the same time wherever the bytes differ.
  bool equal(std::string_view proof, const Expected<std::string>& expected) const;

 private:
  struct Library;
  Secret(std::string text, const Library& library) : text_(std::move(text)), library_(&library) {}

  std::string text_;
  const Library* library_;
};

}  // namespace sheaf::comm
