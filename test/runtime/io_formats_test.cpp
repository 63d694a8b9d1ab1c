// File formats with right, truncated and hostile contents; hashes, JSON and conversions beneath them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/base/Hash.h"
#include "runtime/base/Json.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/io/DataType.h"
#include "runtime/io/Npy.h"
#include "runtime/io/Safetensors.h"
#include "runtime/io/TokenFile.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::npy;
using testing::TemporaryFolder;

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The vectors of xxHash's own sanity test (cli/xsum_sanity_check.c) for seed 0, and two strings of its specification's
// other implementations.
TEST(Hash, PublishedVectors) {
  std::string buffer;
  for (uint64_t i = 0, state = 2654435761u; i < 222; ++i, state *= 11400714785074694797u)
    buffer.push_back(static_cast<char>(state >> 56));
  const std::pair<size_t, uint64_t> vectors[] = {{0, 0xef46db3751d8e999u},
                                                 {1, 0xe934a84adb052768u},
                                                 {4, 0x9136a0dca57457eeu},
                                                 {14, 0x8282dcc4994e35c8u},
                                                 {222, 0xb641ae8cb691c174u}};
  for (auto [size, hash] : vectors) EXPECT_EQ(xxh64(buffer.substr(0, size)), hash) << size;
  EXPECT_EQ(xxh64("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(xxh64("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
}

TEST(Hash, PiecesDoNotMatter) {
  std::string text(1000, 'a');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  for (size_t piece : {1, 7, 31, 32, 33, 100}) {
    Xxh64 hash;
    for (size_t at = 0; at < text.size(); at += piece) hash.update(bytesOf(text.substr(at, piece)));
    EXPECT_EQ(hash.digest(), xxh64(text)) << piece;
  }
}

TEST(MappedFiles, SlicesLieWithinTheFile) {
  TemporaryFolder folder;
  const std::string path = folder / "file";
  testing::writeFile(path, "0123456789");
  Expected<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  for (auto [offset, length] : {std::pair<uint64_t, uint64_t>{0, 10}, {9, 1}, {10, 0}, {3, 4}}) {
    auto slice = file->slice(offset, length);
    ASSERT_TRUE(slice.ok()) << slice.status().message();
    EXPECT_EQ(slice->data(), file->bytes().data() + offset);
    EXPECT_EQ(slice->size(), length);
  }
  for (auto [offset, length] :
       {std::pair<uint64_t, uint64_t>{0, 11}, {10, 1}, {11, 0}, {1, UINT64_MAX}, {UINT64_MAX, 2}, {UINT64_MAX, 0}})
    EXPECT_EQ(file->slice(offset, length).status().message(),
              cat(path, " has 10 bytes, and ", length, " at offset ", offset,
                  " are needed: the file is truncated, or is another one"));
  testing::writeFile(path, "");
  EXPECT_TRUE(MappedFile::open(path)->slice(0, 0).ok());
  EXPECT_THAT(MappedFile::open(path)->slice(0, 1).status().message(), HasSubstr("has 0 bytes, and 1 at offset 0"));
}

TEST(MappedFiles, PointersOfGitLfsAreNamed) {
  TemporaryFolder folder;
  const std::string path = folder / "file", pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
  auto complaint = [&](const std::string& text) {
    testing::writeFile(path, text);
    return MappedFile::open(path).status().message();
  };
  EXPECT_EQ(complaint(pointer + "size 65536\n"),
            cat(path, " has ", pointer.size() + 11,
                " bytes: it is a Git LFS pointer in the place of a file of 65536 bytes; fetch the file with "
                "`git lfs pull`"));
  EXPECT_THAT(complaint(pointer), HasSubstr("in the place of a file;"));
  EXPECT_EQ(complaint("# " + pointer), "");
  EXPECT_EQ(complaint(pointer + std::string(1024, '\n')), "");
}

TEST(Text, NearestIsASlipOnly) {
  EXPECT_EQ(nearest("--stepz", {"--steps", "--save"}), "--steps");
  EXPECT_EQ(nearest("--frobnicate", {"--steps", "--save"}), "");
  EXPECT_EQ(nearest("--hlep", {"--keep", "--help"}), "--help");
  EXPECT_EQ(nearest("foo", {"fit"}), "");
  EXPECT_EQ(nearest("fti", {"fit"}), "fit");
  EXPECT_EQ(nearest("-b", {"-o"}), "");
  EXPECT_EQ(nearest("-lr", {"--lr"}), "--lr");
  EXPECT_EQ(counted(1, "leaf", "leaves"), "1 leaf");
  EXPECT_EQ(counted(2, "leaf", "leaves"), "2 leaves");
  EXPECT_EQ(counted(0, "row"), "0 rows");
  EXPECT_EQ(countText(1234567), "1,234,567");
  EXPECT_EQ(countText(12), "12");
  EXPECT_EQ(bytesText(1536), "1.5 KiB");
}

TEST(Text, NumbersThatF32DoesNotHold) {
  for (double held : {0.0, 1e-3, -3.4e38, 1e-44}) EXPECT_EQ(f32Problem(held), "") << held;
  for (double large : {1e39, -1e300}) EXPECT_THAT(f32Problem(large), HasSubstr("beyond")) << large;
  for (double small : {1e-50, -1e-46}) EXPECT_THAT(f32Problem(small), HasSubstr("is 0 in f32")) << small;
}

TEST(Text, BytesHaveUnits) {
  uint64_t bytes = 0;
  auto parsed = [&](const char* text) { return parseBytes(text, bytes) ? static_cast<int64_t>(bytes) : -1; };
  EXPECT_EQ(parsed("4096"), 4096);
  EXPECT_EQ(parsed("24GiB"), int64_t{24} << 30);
  EXPECT_EQ(parsed("1.5 MiB"), 3 << 19);
  EXPECT_EQ(parsed("80GB"), 80'000'000'000);
  EXPECT_EQ(parsed("2kB"), 2000);
  EXPECT_EQ(parsed("0B"), 0);
  for (const char* wrong : {"", "GiB", "-1", "1e3", "12 XB", "1.2.3", "1 GiB ", "2000 PiB"})
    EXPECT_EQ(parsed(wrong), -1) << wrong;
}

TEST(Json, RoundTrip) {
  const char* text = R"({"a": [1, -2.5, 1e+300, true, false, null], "b\n\"": {"c": "é€😀"}, "d": []})";
  auto value = json::parse(text);
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_EQ(json::write(*value), text);
  EXPECT_EQ(json::write(*json::parse(json::write(*value, 2))), text);
  EXPECT_EQ(*json::parse(R"("é😀\/")")->string(), "é😀/");
}

TEST(Json, DoublesReadBackTheSame) {
  for (double value : {0.1, 1.0 / 3, 2.35141634941101, 5e-324, 1e22, -0.0}) {
    double back = 0;
    ASSERT_TRUE(json::parse(json::write(value))->number(back));
    EXPECT_EQ(std::memcmp(&value, &back, sizeof value), 0) << value;
  }
  EXPECT_EQ(json::write(std::nan("")), "null");
  EXPECT_EQ(json::write(INFINITY), "null");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "01",
                           "1.",
                           "1e",
                           "-",
                           "nul",
                           "\"a",
                           "\"\n\"",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "{\"a\":1,\"a\":2}",
                           "[1] 2",
                           "NaN",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "1e999",
                           "+1"})
    EXPECT_FALSE(json::parse(text).ok()) << text;
  EXPECT_FALSE(json::parse(std::string(1000, '[')).ok());
}

template <typename To, typename From>
std::vector<To> converted(io::DataType from, io::DataType to, const std::vector<From>& values) {
  std::vector<To> result(values.size());
  Status status = io::convert(from, reinterpret_cast<const std::byte*>(values.data()), to,
                              reinterpret_cast<std::byte*>(result.data()), values.size());
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

TEST(Convert, IntegersAndFloats) {
  using io::DataType;
  EXPECT_THAT((converted<int64_t, uint16_t>(DataType::U16, DataType::I64, {0, 65535})), ElementsAre(0, 65535));
  EXPECT_THAT((converted<int64_t, int32_t>(DataType::I32, DataType::I64, {-1, 7})), ElementsAre(-1, 7));
  EXPECT_THAT((converted<float, double>(DataType::F64, DataType::F32, {0.1, -2})), ElementsAre(0.1f, -2.f));
  EXPECT_THAT((converted<float, uint8_t>(DataType::U8, DataType::F32, {0, 255})), ElementsAre(0.f, 255.f));
  EXPECT_THAT((converted<float, uint16_t>(DataType::BF16, DataType::F32, {0x3f80, 0xc020})), ElementsAre(1.f, -2.5f));
  EXPECT_THAT((converted<uint16_t, float>(DataType::F32, DataType::BF16, {1.f, 1.00390625f, 1.01171875f})),
              ElementsAre(0x3f80, 0x3f80, 0x3f82));
  EXPECT_THAT((converted<float, uint16_t>(DataType::F16, DataType::F32, {0x3c00, 0xc100, 0x0001, 0x7c00, 0x7bff})),
              ElementsAre(1.f, -2.5f, std::ldexp(1.f, -24), INFINITY, 65504.f));
  EXPECT_THAT(
      (converted<uint16_t, float>(DataType::F32, DataType::F16, {1.f, 65519.f, 65520.f, 1e-8f, std::ldexp(3.f, -25)})),
      ElementsAre(0x3c00, 0x7bff, 0x7c00, 0, 2));
}

TEST(Convert, EveryHalfSurvivesTheWayThroughF32) {
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    if ((bits & 0x7c00) != 0x7c00 || (bits & 0x3ff) == 0) all.push_back(static_cast<uint16_t>(bits));
  auto wide = converted<float>(io::DataType::F16, io::DataType::F32, all);
  EXPECT_EQ(converted<uint16_t>(io::DataType::F32, io::DataType::F16, wide), all);
}

TEST(Convert, WhatDoesNotFitIsAnError) {
  int64_t large = int64_t{1} << 40;
  int32_t small = 0;
  auto source = reinterpret_cast<const std::byte*>(&large);
  EXPECT_THAT(
      io::convert(io::DataType::I64, source, io::DataType::I32, reinterpret_cast<std::byte*>(&small), 1).message(),
      HasSubstr("1099511627776"));
  EXPECT_FALSE(io::convertible(io::DataType::F32, io::DataType::I64));
  EXPECT_FALSE(io::convertible(io::DataType::I64, io::DataType::F32));
  EXPECT_TRUE(io::convertible(io::DataType::F64, io::DataType::F32));
}

TEST(Npy, Versions) {
  std::string one = npy<int32_t>("<i4", {2, 3}, {1, 2, 3, 4, 5, 6});
  auto array = io::parseNpy(bytesOf(one));
  ASSERT_TRUE(array.ok()) << array.status().message();
  EXPECT_EQ(array->type, io::DataType::I32);
  EXPECT_THAT(array->shape, ElementsAre(2, 3));
  EXPECT_EQ(array->data.size(), 24u);
  std::string two =
      one.substr(0, 6) + std::string("\x02\0", 2) + one.substr(8, 2) + std::string(2, '\0') + one.substr(10);
  auto again = io::parseNpy(bytesOf(two));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->type, array->type);
  EXPECT_EQ(again->shape, array->shape);
  for (const auto& read : {*array, *again}) {
    std::vector<int32_t> values(6);
    ASSERT_EQ(read.data.size(), 24u);
    std::memcpy(values.data(), read.data.data(), 24);
    EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST(Npy, ScalarsAndOneDimension) {
  auto expect = [](const std::string& file, io::DataType type, std::vector<int64_t> shape, size_t bytes) {
    auto array = io::parseNpy(bytesOf(file));
    ASSERT_TRUE(array.ok()) << array.status().message();
    EXPECT_EQ(array->type, type);
    EXPECT_EQ(array->shape, shape);
    EXPECT_EQ(array->data.size(), bytes);
  };
  expect(npy<float>("<f4", {}, {1}), io::DataType::F32, {}, 4);
  expect(npy<uint8_t>("|u1", {3}, {1, 2, 3}), io::DataType::U8, {3}, 3);
  expect(npy<float>("<f4", {0, 7}, {}), io::DataType::F32, {0, 7}, 0);
}

TEST(Npy, RefusesWhatItCannotRead) {
  std::string good = npy<float>("<f4", {2, 3}, {1, 2, 3, 4, 5, 6});
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(io::parseNpy(bytesOf(good.substr(0, size))).ok()) << size;
  EXPECT_FALSE(io::parseNpy(bytesOf(good + "x")).ok());
  auto refused = [](const std::string& file) { return io::parseNpy(bytesOf(file)).status().message(); };
  EXPECT_THAT(refused(npy<float>(">f4", {1}, {1})), HasSubstr(">f4"));
  EXPECT_THAT(refused(npy<double>("<c8", {1}, {1})), HasSubstr("<c8"));
  EXPECT_THAT(refused(npy<double>("|O", {1}, {1})), HasSubstr("|O"));
  EXPECT_THAT(refused(npy<float>("<f4", {int64_t{1} << 62, 16}, {1})), HasSubstr("does not match"));
  std::string fortran = good;
  fortran.replace(fortran.find("False"), 5, "True ");
  EXPECT_THAT(refused(fortran), HasSubstr("Fortran"));
  std::string structured = good;
  structured.replace(structured.find("'<f4'"), 5, "[('a'");
  EXPECT_THAT(refused(structured), HasSubstr("plain array"));
}

Expected<io::Tokens> tokensOf(const std::string& file, std::string_view path, std::string_view type) {
  return io::parseTokens(bytesOf(file).first(std::min(file.size(), io::kTokenHeaderBytes)), file.size(), path, type);
}

TEST(Tokens, TypesBySuffixAndBySaying) {
  std::string four("\x01\0\x02\0", 4);
  EXPECT_EQ(tokensOf(four, "a/x.bin", "")->count, 2u);
  EXPECT_EQ(tokensOf(four, "x.u8", "")->count, 4u);
  EXPECT_EQ(tokensOf(four, "x.txt", "u32")->count, 1u);
  EXPECT_THAT(tokensOf(four, "x.txt", "").status().message(), HasSubstr(":u16"));
  EXPECT_THAT(tokensOf(four, "x.txt", "f32").status().message(), HasSubstr("'f32'"));
  EXPECT_THAT(tokensOf(four.substr(1), "x.bin", "").status().message(), HasSubstr("3 bytes"));
}

TEST(Tokens, HeaderOfLlmC) {
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 3;
  std::string file(reinterpret_cast<const char*>(header.data()), 1024);
  file += std::string("\x05\0\x06\0\x07\0", 6);
  auto tokens = tokensOf(file, "train.bin", "");
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ(tokens->count, 3u);
  EXPECT_EQ(tokens->offset, 1024u);
  EXPECT_THAT(tokensOf(file + "xx", "train.bin", "").status().message(), HasSubstr("announces 3"));
}

std::string safetensors(const std::string& header, size_t data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\0');
}

TEST(Safetensors, WritesAndReads) {
  TemporaryFolder folder;
  auto writer = io::SafetensorsWriter::create(folder / "w",
                                              {{"b", io::DataType::F32, {2}}, {"a \"é", io::DataType::I64, {1, 1}}});
  ASSERT_TRUE(writer.ok());
  std::vector<float> floats{1, 2};
  int64_t integer = 7;
  ASSERT_TRUE(writer->write(std::as_bytes(std::span(floats))).ok());
  EXPECT_FALSE(writer->commit().ok());
  ASSERT_TRUE(writer->write(std::as_bytes(std::span(&integer, 1))).ok());
  EXPECT_FALSE(writer->write(bytesOf("x")).ok());
  ASSERT_TRUE(writer->commit().ok());
  auto read = io::Safetensors::open(folder / "w");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(read->find("b")->data.data(), floats.data(), 8), 0);
  EXPECT_THAT(read->find("a \"é")->shape, ElementsAre(1, 1));
  EXPECT_EQ(read->find("c"), nullptr);
  std::string bytes = testing::readFile(folder / "w");
  EXPECT_EQ(writer->checksum(), xxh64(bytes));
  EXPECT_EQ(writer->size(), bytes.size());
}

TEST(Safetensors, NothingRemainsWithoutCommit) {
  TemporaryFolder folder;
  { auto writer = io::SafetensorsWriter::create(folder / "w", {{"b", io::DataType::F32, {2}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// The first eight bytes are the header's length, and some lengths look like another format: 0x280 begins like a pickle.
TEST(Safetensors, AHeaderMayHaveAnyLength) {
  for (size_t length = 64; length <= 4096; ++length) {
    std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    header.resize(length, ' ');
    auto read = io::Safetensors::parse(bytesOf(safetensors(header, 8)));
    ASSERT_TRUE(read.ok()) << length << ": " << read.status().message();
    EXPECT_NE(read->find("a"), nullptr) << length;
  }
}

TEST(Safetensors, AFileOfTorchSaveIsRefusedWithAdvice) {
  for (std::string begin : {std::string("PK\x03\x04\0\0\x08\x08", 8), std::string("\x80\x02\x8a\nl\xfc\x9c\x46", 8)})
    EXPECT_THAT(io::Safetensors::parse(bytesOf(begin + std::string(100, 'x'))).status().message(),
                HasSubstr("one of torch.save; save the weights with safetensors.torch.save_file"));
}

TEST(Safetensors, RefusesHostileHeaders) {
  auto refused = [](const std::string& header, size_t data) {
    return io::Safetensors::parse(bytesOf(safetensors(header, data))).status().message();
  };
  EXPECT_EQ(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "");
  EXPECT_EQ(refused(R"({"__metadata__":{"x":"y"}})", 0), "");
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), HasSubstr("outside"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), HasSubstr("does not match"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("F33"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), HasSubstr("dimension"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8),
              HasSubstr("does not match"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), HasSubstr("outside"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), HasSubstr("gap"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8), HasSubstr("follow"));
  EXPECT_THAT(
      refused(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
      HasSubstr("overlaps"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}})", 8),
              HasSubstr("duplicate member"));
  EXPECT_THAT(refused(R"({"a":{"dtype":"F32","shape":[2]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(refused("[1]", 0), HasSubstr("JSON object"));
  EXPECT_THAT(refused("{", 0), HasSubstr("header"));
  std::string huge(16, '\xff');
  EXPECT_THAT(io::Safetensors::parse(bytesOf(huge)).status().message(), HasSubstr("claims"));
  EXPECT_FALSE(io::Safetensors::parse(bytesOf("short")).ok());
}

}  // namespace
}  // namespace sheaf
