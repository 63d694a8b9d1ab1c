#include "runtime/comm/process/Secret.h"

#include <dlfcn.h>
#include <sys/random.h>

#include <limits>

#include "runtime/base/Text.h"
#include "runtime/comm/process/Connection.h"
#include "runtime/comm/socket/Socket.h"

namespace sheaf::comm {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr unsigned kDigestBytes = 32;

}  // namespace

// OpenSSL's functions, whose declarations are in openssl/evp.h, hmac.h and crypto.h.
struct Secret::Library {
  const void* (*sha256)();
  unsigned char* (*hmac)(const void* hash, const void* key, int keyBytes, const unsigned char* data, size_t dataBytes,
                         unsigned char* digest, unsigned* digestBytes);
  int (*compare)(const void* a, const void* b, size_t bytes);
};

Expected<std::string> makeNonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    return Status::error(cat("no random numbers for SHEAF_SECRET: ", systemError()));
  return nonce;
}

Expected<Secret> Secret::open(std::string text, const char* library) {
  static Library functions;
  // It stays loaded until the process ends.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Status::error(cat("SHEAF_SECRET needs OpenSSL's libcrypto (on Debian: apt install libssl3): ", dlerror()));
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  Library found;
  if (!find(found.sha256, "EVP_sha256") || !find(found.hmac, "HMAC") || !find(found.compare, "CRYPTO_memcmp"))
    return Status::error(cat("SHEAF_SECRET needs OpenSSL's libcrypto, which ", library, " is not: ", dlerror()));
  functions = found;
  return Secret(std::move(text), functions);
}

Expected<std::string> Secret::hmac(std::string_view message) const {
  std::string digest(kDigestBytes, '\0');
  unsigned bytes = 0;
  if (text_.size() > std::numeric_limits<int>::max() ||
      !library_->hmac(library_->sha256(), text_.data(), static_cast<int>(text_.size()),
                      reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                      reinterpret_cast<unsigned char*>(digest.data()), &bytes) ||
      bytes != kDigestBytes)
    return Status::error("SHEAF_SECRET: OpenSSL's libcrypto cannot compute an HMAC-SHA-256");
  return digest;
}

Expected<std::string> Secret::joinProof(std::string_view hello, std::string_view challenge) const {
  return hmac(Packer().string("sheaf: join").string(hello).string(challenge).bytes());
}

Expected<std::string> Secret::welcomeProof(std::string_view hello, std::string_view challenge,
                                           std::string_view members) const {
  return hmac(Packer().string("sheaf: welcome").string(hello).string(challenge).string(members).bytes());
}

bool Secret::equal(std::string_view proof, const Expected<std::string>& expected) const {
  return expected.ok() && proof.size() == expected->size() &&
         library_->compare(proof.data(), expected->data(), proof.size()) == 0;
}

}  // namespace sheaf::comm
