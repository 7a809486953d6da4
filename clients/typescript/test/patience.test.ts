// These take long, so they run side by side.

import assert from "node:assert/strict";
import { describe } from "node:test";

import { scheduled } from "./harness.js";

describe("with patience", { concurrency: true }, () => {
  scheduled("a scheduler that hangs is an error after a while", async (scheduler) => {
    await scheduler.client.status();
    scheduler.signal("SIGSTOP");
    const begun = performance.now();
    const message = /no answer within 10000 ms/;
    try {
      await assert.rejects(scheduler.client.status(), { name: "NvshareError", status: 0, message });
      assert.ok(performance.now() - begun >= 9_900);
    } finally {
      scheduler.signal("SIGCONT");
    }
  });

  // Longer than connections may be idle, on a connection that was idle before.
  scheduled("a request may wait for long", async (scheduler) => {
    await scheduler.lease();
    const answer = await scheduler.client.acquire({ taskType: "ASR", maxWaitMs: 6_000 });
    assert.equal(answer.result, "TIMEOUT");
  });
});
