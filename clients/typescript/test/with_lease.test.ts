import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";

import { NvshareRefusedError } from "nvshare";

import { scheduled } from "./harness.js";

scheduled("work has its lease for as long as it takes", async ({ client }) => {
  const begun = performance.now();
  const value = await client.withLease({ taskType: "ASR", holdMaxMs: 900 }, async (lease, lost) => {
    await pause(2500);
    assert.equal(lost.aborted, false);
    const listed = await client.lease(lease.leaseId);
    assert.equal(listed.state, "ACTIVE");
    assert.ok(lease.expiresAt.getTime() - lease.acquiredAt.getTime() > 2500);
    return 42;
  });
  assert.equal(value, 42);
  assert.ok(performance.now() - begun >= 2500);
  const counts = (await client.status()).classes["ASR"];
  assert.equal(counts?.revoked, 0);
  assert.equal(counts?.released, 1);
});

scheduled("the lease is given back after an exception", async ({ client }) => {
  const broken = new Error("no speech in it");
  const work = client.withLease({ taskType: "ASR" }, () => {
    throw broken;
  });
  await assert.rejects(work, (error) => error === broken);
  assert.deepEqual(await client.leases(), []);
});

scheduled("work may give its lease back early", async ({ client }) => {
  assert.equal(await client.withLease({ taskType: "ASR" }, (lease) => lease.release()), undefined);
  assert.equal((await client.status()).classes["ASR"]?.released, 1);
});

scheduled("work is told that its lease is lost", async ({ client }) => {
  await client.withLease({ taskType: "ASR", holdMaxMs: 100 }, async (_lease, lost) => {
    const until = performance.now() + 500;
    while (performance.now() < until); // no renewal gets through
    if (!lost.aborted) await new Promise((resolve) => lost.addEventListener("abort", resolve));
    assert.equal(lost.reason.status, 410);
    assert.equal(lost.reason.reason, "OVERDUE");
  });
});

scheduled("a refusal goes to onRefused, or is an error", async (scheduler) => {
  const { client } = scheduler;
  await scheduler.lease();
  const never = () => assert.fail("it has no lease");
  const value = await client.withLease({ taskType: "SEMANTIC_REPAIR" }, never, {
    onRefused: (refused) => refused.result,
  });
  assert.equal(value, "SKIPPED");
  await assert.rejects(client.withLease({ taskType: "NMT", maxWaitMs: 0 }, never), (error) => {
    assert.ok(error instanceof NvshareRefusedError);
    assert.equal(error.status, 503);
    assert.equal(error.message, "TIMEOUT: GPU_BUSY");
    assert.equal(error.refused.reason, "GPU_BUSY");
    return true;
  });
});
