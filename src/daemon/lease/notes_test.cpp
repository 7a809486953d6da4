#include "daemon/lease/notes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/lease/testing.h"

namespace nvshare::daemon {
namespace {

struct Noted : LeaseWorld {
  Noted() {
    settings.arbiter.slots = 1;
    leases.set_config(settings.arbiter);
  }

  // What each line says after its time.
  std::vector<std::string> lines(const std::string& tenant = "") const {
    std::vector<std::string> all;
    for (const std::string_view line : broker.broker.trace().from(0, tenant, 100).lines) {
      all.emplace_back(line.substr(line.find("event=lease_") + 12));
    }
    return all;
  }
  LeaseFacts::Leases facts_of(const std::string& tenant) const {
    return notes.facts([&](const std::string& one) { return one == tenant; }, broker.now);
  }

  int looked_up = 0;
  LeaseNotes notes{leases, broker.broker.trace(), [this](int pid, std::uint32_t) {
                     ++looked_up;
                     return std::string(pid == kOwner ? "asr" : "other");
                   }};
};

using Lines = std::vector<std::string>;

TEST(LeaseNotes, EachStepOfALeaseIsALine) {
  Noted w;
  w.usage(10);
  const std::string name = w.lease("ASR");
  EXPECT_EQ(w.ask("NMT", R"(,"maxWaitMs":300)").status, 0);
  w.pass(300ms);
  w.call("DELETE", "/v1/leases/" + name);
  w.lease("TTS", R"(,"holdMaxMs":1000)");
  w.pass(1s);
  EXPECT_EQ(w.lines("asr"),
            (Lines{"asked tenant=asr lease=1 class=ASR gpu=0",
                   "acquired tenant=asr lease=1 class=ASR gpu=0 waited=0",
                   "asked tenant=asr lease=2 class=NMT gpu=0",
                   "refused tenant=asr lease=2 class=NMT gpu=0 outcome=TIMEOUT reason=GPU_BUSY "
                   "waited=300000000",
                   "released tenant=asr lease=1 class=ASR gpu=0",
                   "asked tenant=asr lease=3 class=TTS gpu=0",
                   "acquired tenant=asr lease=3 class=TTS gpu=0 waited=0",
                   "revoked tenant=asr lease=3 class=TTS gpu=0 reason=OVERDUE"}));
}

TEST(LeaseNotes, WithdrawnRequestsAndEndedOwnersAreLines) {
  Noted w;
  w.lease("ASR");
  EXPECT_EQ(w.ask("NMT").status, 0);
  w.api.ended(w.last, false);
  w.picture.gone(kOwner);
  w.leases.look();
  const Lines all = w.lines();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[3], "withdrawn tenant=asr lease=2 class=NMT gpu=0 reason=WITHDRAWN");
  EXPECT_EQ(all[4], "released tenant=asr lease=1 class=ASR gpu=0 reason=OWNER_GONE");
}

// It has a slot, and waits all the same.
TEST(LeaseNotes, ARequestWhoseMemoryComesIsWithdrawnAndAnswered) {
  Noted w;
  bool there = false;
  w.leases.use_programs({[](const LeaseHolder&, GpuId) { return true; },
                         [&](const LeaseHolder&, GpuId) { return there; }});
  EXPECT_EQ(w.ask("ASR").status, 0);
  const HttpCall waits = w.last;
  EXPECT_FALSE(w.facts_of("asr").first.at(0).text.find("its memory comes") == std::string::npos);
  const std::string name = w.get("/v1/leases")["leases"][0]["leaseId"];
  EXPECT_EQ(w.call("DELETE", "/v1/leases/" + name).status, 204);
  EXPECT_EQ(w.replies[waits].status, 410);
  EXPECT_EQ(w.lines().back(), "withdrawn tenant=asr lease=1 class=ASR gpu=0 reason=WITHDRAWN");
  there = true;
  w.lease("ASR");
  EXPECT_EQ(w.lines().back(), "acquired tenant=asr lease=2 class=ASR gpu=0 waited=0");
}

// Its name is the right to it.
TEST(LeaseNotes, TheNameOfALeaseIsNotInTheTrace) {
  Noted w;
  const std::string name = w.lease("ASR");
  for (const std::string& line : w.lines()) EXPECT_EQ(line.find(name), std::string::npos) << line;
}

TEST(LeaseNotes, ALeaseWithoutAnOwnerIsItsUsersAndOneOverTcpNobodys) {
  Noted w;
  const std::string name = w.lease("ASR", R"(,"ownerPid":null)");
  EXPECT_EQ(w.facts_of("user-1000").total, 1u);
  w.call("DELETE", "/v1/leases/" + name);
  w.peer.reset();
  w.lease("ASR");
  const Lines all = w.lines();
  EXPECT_EQ(all.back(), "acquired lease=2 class=ASR gpu=0 waited=0");
  EXPECT_EQ(w.facts_of("").total, 0u);
}

TEST(LeaseNotes, AnOwnerIsLookedUpOnceASecond) {
  Noted w;
  for (int i = 0; i < 3; ++i) w.call("DELETE", "/v1/leases/" + w.lease("ASR"));
  EXPECT_EQ(w.looked_up, 1);
  w.notes.look();
  w.lease("ASR");
  EXPECT_EQ(w.looked_up, 2);
}

TEST(LeaseNotes, FactsAreOfTheWantedTenantAndSayWhy) {
  Noted w;
  w.usage(10);
  const std::string name = w.lease("ASR");
  w.pass(1s);
  w.peer = HttpPeer{kOtherOwner, 1001};
  EXPECT_EQ(w.ask("NMT").status, 0);
  const auto holds = w.facts_of("asr");
  ASSERT_EQ(holds.first.size(), 1u);
  EXPECT_EQ(holds.first[0].name, name);
  EXPECT_EQ(holds.first[0].pid, kOwner);
  EXPECT_EQ(holds.first[0].text, "held for 1.00s, ends in 29.00s");
  const auto waits = w.facts_of("other");
  ASSERT_EQ(waits.first.size(), 1u);
  EXPECT_EQ(waits.first[0].text,
            "waits for 0ms: no slot is free (1 of 1 are taken); gives up in 3.00s");
}

TEST(LeaseNotes, FactsAreBounded) {
  Noted w;
  w.lease("ASR");
  for (std::size_t i = 0; i < LeaseFacts::kMost; ++i) EXPECT_EQ(w.ask("NMT").status, 0);
  const auto facts = w.facts_of("asr");
  EXPECT_EQ(facts.first.size(), LeaseFacts::kMost);
  EXPECT_EQ(facts.total, LeaseFacts::kMost + 1);
  EXPECT_TRUE(facts.first[0].view.active);
}

TEST(LeaseNotes, NothingIsKeptOfALeaseThatHasEnded) {
  Noted w;
  w.call("DELETE", "/v1/leases/" + w.lease("ASR"));
  EXPECT_EQ(w.notes.tenant_of(core::LeaseId{1}), "");
  EXPECT_EQ(w.facts_of("asr").total, 0u);
}

TEST(LeaseNotes, AGpuIsUsedFromItsFirstRequestOn) {
  Noted w;
  EXPECT_FALSE(w.leases.used(GpuId{0}));
  const std::string name = w.lease("ASR");
  w.call("DELETE", "/v1/leases/" + name);
  EXPECT_TRUE(w.leases.used(GpuId{0}));
}

}  // namespace
}  // namespace nvshare::daemon
