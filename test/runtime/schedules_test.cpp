// Schedules of the learning rate against those of PyTorch, transformers and DeepSpeed, which test/models/schedules.py
// stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/base/Json.h"
#include "runtime/base/MappedFile.h"
#include "runtime/plan/Schedules.h"
#include "test/Paths.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

plan::Schedule parsed(const std::string& text) {
  Expected<plan::Schedule> schedule = plan::parseSchedule(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  return schedule.ok() ? *schedule : plan::Schedule();
}

TEST(Schedules, EqualPyTorchs) {
  Expected<MappedFile> file = MappedFile::open(std::string(sheaf::paths::kModels) + "/schedules.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  Expected<json::Value> stored =
      json::parse({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  std::set<plan::Schedule::Kind> kinds;
  size_t compared = 0;
  for (const json::Value& one : *stored->object()->find("cases")->array()) {
    const json::Object& entry = *one.object();
    const std::string& text = *entry.find("schedule")->string();
    const plan::Schedule schedule = parsed(text);
    kinds.insert(schedule.kind());
    double rate = 0, expected = 0;
    ASSERT_TRUE(entry.find("learning_rate")->number(rate));
    int64_t step = 0;
    for (const json::Value& number : *entry.find("rates")->array()) {
      ASSERT_TRUE(number.number(expected));
      // PyTorch's own recursions round to some 1e-16 of the full rate at every step.
      EXPECT_NEAR(rate * plan::scheduleFactor(schedule, step), expected, 1e-14 * rate) << text << ", step " << step;
      ++step, ++compared;
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<size_t>(plan::Schedule::Kind_MAX + 1)) << "a kind is not compared";
  EXPECT_GT(compared, 600u);
}

TEST(Schedules, StayAtTheirEnd) {
  for (auto [text, end] : {std::pair("cosine:steps=9,min=0.1", 0.1),
                           {"linear:steps=9", 0.0},
                           {"polynomial:steps=9,min=0.2,power=2", 0.2},
                           {"wsd:decay=3,steps=9,min=0.3", 0.3},
                           {"one-cycle:steps=9,div_factor=5,final_div_factor=2", 0.1}})
    for (int64_t step : {9, 10, 1000000}) EXPECT_DOUBLE_EQ(plan::scheduleFactor(parsed(text), step), end) << text;
}

TEST(Schedules, TextIsReadBack) {
  for (const char* text :
       {"constant", "constant:warmup=5,start=0", "linear:warmup=5,start=0,rise=log,delay=1",
        "cosine:steps=1000,min=0.1,warmup=100", "cosine", "polynomial:steps=12,power=0.3333333333333333,min=1e-05",
        "step:step_size=30,gamma=0.97", "wsd:decay=10,steps=100,anneal=1-sqrt",
        "one-cycle:steps=10,pct_start=0.25,anneal=linear,three_phase=true"}) {
    const plan::Schedule schedule = parsed(text);
    EXPECT_EQ(plan::scheduleText(schedule), text);
    EXPECT_EQ(parsed(plan::scheduleText(schedule)).SerializeAsString(), schedule.SerializeAsString()) << text;
  }
  // Settings at their defaults are left out.
  EXPECT_EQ(plan::scheduleText(parsed("step:gamma=0.1,step_size=4")), "step:step_size=4");
}

TEST(Schedules, RefusedTexts) {
  for (auto [text, why] : {std::pair("linaer:steps=3", "did you mean 'linear'?"),
                           {"", "expected one of constant, cosine, linear, polynomial, step, wsd, one-cycle"},
                           {"cosine:steps=3,warmup=3", "more steps than the 3 of its warmup"},
                           {"cosine:steps=x", "'steps=x': steps must be a number of steps, at least 1"},
                           {"cosine:steps=0", "'steps=0': steps must be"},
                           {"constant:min=2", "'min=2' is not one of warmup=STEPS, start=FRACTION"},
                           {"linear:min=1.5", "'min=1.5': min must be a number from 0 to 1"},
                           {"linear:min", "'min'"},
                           {"linear:steps=9,steps=9", "'steps' is given twice"},
                           {"linear:steps=9,start=0.1", "needs warmup=STEPS"},
                           {"linear:steps=9,warmup=2,start=-1", "'start=-1'"},
                           {"polynomial:power=0", "'power=0': power must be a number above 0"},
                           {"step", "needs step_size=STEPS"},
                           {"step:step_size=3,gamma=nan", "'gamma=nan'"},
                           {"wsd:steps=9", "needs decay=STEPS"},
                           {"wsd:steps=9,decay=5,warmup=5", "shorter than its warmup of 5 and its decay of 5"},
                           {"wsd:decay=2,anneal=exp", "anneal must be cosine or linear or 1-sqrt"},
                           {"one-cycle:steps=9,warmup=2", "'warmup=2' is not one of"},
                           {"one-cycle:anneal=1-sqrt", "anneal must be cosine or linear"},
                           {"one-cycle:div_factor=0", "'div_factor=0'"},
                           {"constant:warmup=281474976710657", "'warmup=281474976710657'"}})
    EXPECT_THAT(plan::parseSchedule(text).status().message(), AllOf(HasSubstr(text), HasSubstr(why)));
}

TEST(Schedules, TakeTheRunsLength) {
  for (const char* text : {"cosine", "linear:warmup=3", "polynomial:power=2", "wsd:decay=4,warmup=3", "one-cycle"}) {
    const plan::Schedule schedule = parsed(text);
    EXPECT_TRUE(plan::lacksLength(schedule)) << text;
    Expected<plan::Schedule> whole = plan::withLength(schedule, 20);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_EQ(whole->steps(), 20);
    EXPECT_LT(plan::scheduleFactor(*whole, 19), 0.3) << text;
  }
  EXPECT_FALSE(plan::lacksLength(parsed("constant")));
  EXPECT_FALSE(plan::lacksLength(parsed("step:step_size=3")));
  EXPECT_FALSE(plan::lacksLength(parsed("linear:steps=7")));
  EXPECT_EQ(plan::withLength(parsed("linear:steps=7"), 20)->steps(), 7);
  EXPECT_THAT(plan::withLength(parsed("linear:warmup=20"), 20).status().message(), HasSubstr("warmup"));
  EXPECT_THAT(plan::withLength(parsed("wsd:decay=15,warmup=6"), 20).status().message(), HasSubstr("decay of 15"));
}

// What a damaged plan may hold.
TEST(Schedules, ChecksEverySetting) {
  plan::Schedule schedule = parsed("one-cycle:steps=10");
  EXPECT_TRUE(plan::checkSchedule(schedule).ok());
  schedule.set_div_factor(std::nan(""));
  EXPECT_THAT(plan::checkSchedule(schedule).message(), HasSubstr("div_factor"));
  schedule = parsed("wsd:decay=4,steps=9");
  schedule.set_anneal(static_cast<plan::Schedule::Anneal>(7));
  EXPECT_THAT(plan::checkSchedule(schedule).message(), HasSubstr("anneal"));
  schedule = parsed("linear:steps=9");
  schedule.set_steps(-1);
  EXPECT_THAT(plan::checkSchedule(schedule).message(), HasSubstr("steps"));
  schedule.set_kind(static_cast<plan::Schedule::Kind>(99));
  EXPECT_THAT(plan::checkSchedule(schedule).message(), HasSubstr("kind"));
}

// `sheaf schedules` explains every kind, and every key of more than one kind; the others stand in their kind's line.
TEST(Schedules, PageExplainsEveryKey) {
  const std::string page = plan::schedulePage(), syntax = plan::scheduleSyntax();
  EXPECT_EQ(syntax, "constant|cosine|linear|polynomial|step|wsd|one-cycle[:key=value,...]");
  for (const char* name : {"constant", "cosine", "linear", "polynomial", "step", "wsd", "one-cycle"})
    EXPECT_THAT(page, HasSubstr(std::string("\n  ") + name + " "));
  for (const char* key : {"steps", "warmup", "start", "rise", "min", "delay", "idle", "ahead", "anneal"})
    EXPECT_THAT(page, HasSubstr(std::string("\n  ") + key + " "));
  for (const char* key : {"power", "step_size", "gamma", "decay"}) EXPECT_THAT(page, HasSubstr(std::string(key) + "="));
  for (size_t begin = 0; begin < page.size(); begin = page.find('\n', begin) + 1)
    EXPECT_LE(page.find('\n', begin) - begin, 100u) << page.substr(begin, 120);
}

}  // namespace
}  // namespace sheaf
