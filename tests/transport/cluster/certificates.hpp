// Certificates for tests: an authority, and machines that it vouches for.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

namespace troupe::test {

class certificates {
 public:
  explicit certificates(const std::filesystem::path& folder)
      : folder_(folder), key_(make_key()), own_(make("the authority", key_.get(), key_.get(), nullptr)) {
    write(folder_ / "ca.pem", own_.get());
  }

  std::filesystem::path authority() const { return folder_ / "ca.pem"; }
  // NAME.pem and NAME.key
  void vouch_for(const std::string& name) const {
    const auto key = make_key();
    const auto certificate = make(name, key.get(), key_.get(), own_.get());
    write(folder_ / (name + ".pem"), certificate.get());
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen((folder_ / (name + ".key")).c_str(), "w"), std::fclose);
    if (!file || PEM_write_PrivateKey(file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
      throw std::runtime_error("no key");
  }

 private:
  using owned_key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
  using owned_certificate = std::unique_ptr<X509, void (*)(X509*)>;

  static owned_key make_key() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

  static owned_certificate make(const std::string& name, EVP_PKEY* subject, EVP_PKEY* signer, X509* issuer) {
    owned_certificate made(X509_new(), X509_free);
    X509_set_version(made.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), static_cast<long>(std::hash<std::string>{}(name)&0xffffff));
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), subject);
    X509_NAME* const title = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(title, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made.get(), issuer != nullptr ? X509_get_subject_name(issuer) : title);
    if (issuer == nullptr) {
      const std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> vouches(
          X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE"), X509_EXTENSION_free);
      X509_add_ext(made.get(), vouches.get(), -1);
    }
    if (X509_sign(made.get(), signer, EVP_sha256()) == 0) throw std::runtime_error("not signed");
    return made;
  }

  static void write(const std::filesystem::path& at, X509* what) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(at.c_str(), "w"), std::fclose);
    if (!file || PEM_write_X509(file.get(), what) != 1) throw std::runtime_error("not written");
  }

  std::filesystem::path folder_;
  owned_key key_;
  owned_certificate own_;
};

} // namespace troupe::test
