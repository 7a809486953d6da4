import assert from "node:assert/strict";
import { setImmediate as turn, setTimeout as pause } from "node:timers/promises";

import { Nvshare } from "nvshare";

import { eventually, scheduled } from "./harness.js";

scheduled("a lease is granted, and given back once", async ({ client }) => {
  const request = { taskType: "NMT", gpuKey: 0, holdMaxMs: 5000, trace: "call 7" };
  const answer = await client.acquire(request);
  assert.equal(answer.result, "ACQUIRED");
  const { lease } = answer;
  assert.match(lease.leaseId, /^[0-9a-f]{32}$/);
  assert.equal(lease.taskType, "NMT");
  assert.equal(lease.gpu, 0);
  assert.match(lease.gpuKey, /^GPU-/);
  assert.equal(lease.expiresAt.getTime() - lease.acquiredAt.getTime(), 5000);
  assert.equal(answer.trace, "call 7");
  assert.equal(typeof answer.queueWaitMs, "number");

  await Promise.all([lease.release(), lease.release()]);
  await lease.release();
  assert.deepEqual(await client.leases(), []);
  assert.equal((await client.status()).classes["NMT"]?.released, 1);
});

scheduled("a request waits until a lease is free", async (scheduler) => {
  const first = await scheduler.lease();
  const second = scheduler.client.acquire({ taskType: "ASR", maxWaitMs: 20_000 });
  await scheduler.waiting(1);
  await first.release();
  assert.equal((await second).result, "ACQUIRED");
});

scheduled("a request waits no longer than it says", async (scheduler) => {
  await scheduler.lease();
  const begun = performance.now();
  const answer = await scheduler.client.acquire({ taskType: "ASR", maxWaitMs: 200 });
  assert.ok(performance.now() - begun >= 195);
  assert.equal(answer.result, "TIMEOUT");
  assert.equal(answer.reason, "GPU_BUSY");
  assert.ok(answer.queueWaitMs >= 200);
  assert.ok(answer.retryAfterMs > 0);
});

scheduled("requests that do not wait are told so", async (scheduler) => {
  const { client } = scheduler;
  await scheduler.lease();
  assert.equal((await client.acquire({ taskType: "SEMANTIC_REPAIR" })).result, "SKIPPED");
  const falls = await client.acquire({ taskType: "TTS", busyPolicy: "FALLBACK_CPU" });
  assert.equal(falls.result, "FALLBACK_CPU");
  const wait = client.acquire({ taskType: "TTS", maxWaitMs: 500 });
  await scheduler.waiting(1);
  assert.equal((await client.acquire({ taskType: "TTS" })).result, "QUEUE_FULL");
  assert.equal((await wait).result, "TIMEOUT");
}, { environment: { NVSHARE_LEASE_QUEUE: "1" } });

scheduled("an aborted request is withdrawn", async (scheduler) => {
  const { client } = scheduler;
  await scheduler.lease();
  const abort = new AbortController();
  const wait = client.acquire({ taskType: "ASR", maxWaitMs: 20_000 }, { signal: abort.signal });
  await scheduler.waiting(1);
  const reason = new Error("the caller hung up");
  abort.abort(reason);
  await assert.rejects(wait, (error) => error === reason);
  assert.equal((await client.status()).gpus[0]?.gpu_queue_len, 0);

  const late = client.acquire({ taskType: "ASR" }, { signal: AbortSignal.abort(reason) });
  await assert.rejects(late, (error) => error === reason);
  assert.equal((await client.status()).classes["ASR"]?.timedOut, 0);
});

// A lease that nobody hears of would block the GPU until it expires.
scheduled("a lease is given back when its request is aborted in that moment", async (scheduler) => {
  const { client } = scheduler;
  for (let round = 0; round < 60; ++round) {
    const first = await scheduler.lease();
    const abort = new AbortController();
    const wait = client
      .acquire({ taskType: "ASR", maxWaitMs: 20_000 }, { signal: abort.signal })
      .catch(() => undefined);
    await scheduler.waiting(1);
    // In every third round the scheduler sees both at once.
    const atOnce = round % 3 === 0;
    if (atOnce) scheduler.signal("SIGSTOP");
    const release = first.release();
    for (let turns = 0; turns < round % 6; ++turns) await turn();
    abort.abort();
    if (atOnce) await pause(5);
    scheduler.signal("SIGCONT");
    await release;
    const answer = await wait;
    if (answer?.result === "ACQUIRED") await answer.lease.release();
    assert.deepEqual(await client.leases(), [], `round ${round}`);
  }
});

scheduled("an overdue lease is gone: 410", async (scheduler) => {
  const { client } = scheduler;
  const lease = await scheduler.lease({ taskType: "ASR", holdMaxMs: 50 });
  const gone = { name: "NvshareError", status: 410, reason: "OVERDUE" };
  await eventually(async () => (await client.leases()).length === 0);
  await assert.rejects(client.lease(lease.leaseId), gone);
  await assert.rejects(lease.renew(), gone);
  await assert.rejects(lease.release(), gone);
  await assert.rejects(lease.release(), gone);
});

scheduled("a lease can be renewed", async (scheduler) => {
  const lease = await scheduler.lease({ taskType: "ASR", holdMaxMs: 10_000 });
  const before = lease.expiresAt;
  const until = await lease.renew(20_000);
  assert.ok(until.getTime() >= before.getTime() + 9_000);
  assert.equal(lease.expiresAt, until);
});

scheduled("await using gives the lease back", async (scheduler) => {
  {
    await using lease = await scheduler.lease();
    assert.equal((await scheduler.client.leases())[0]?.leaseId, lease.leaseId);
  }
  assert.deepEqual(await scheduler.client.leases(), []);
  {
    await using lease = await scheduler.lease();
    await lease.release();
  }
  {
    await using lease = await scheduler.lease({ taskType: "ASR", holdMaxMs: 20 });
    await eventually(async () => (await scheduler.client.leases()).length === 0);
    assert.ok(lease);
  }
});

scheduled("mistakes are told", async ({ client }) => {
  await assert.rejects(client.acquire({ taskType: "OCR" }), {
    name: "NvshareError",
    status: 400,
    message: "there is no class 'OCR'",
    classes: ["ASR", "NMT", "TTS", "SEMANTIC_REPAIR"],
  });
  await assert.rejects(client.acquire({ taskType: "ASR", gpuKey: "GPU-1" }), { status: 404 });
  await assert.rejects(client.acquire({ taskType: "ASR", maxWaitMs: -1 }), /maxWaitMs: -1/);
  await assert.rejects(client.lease("../config"), { status: 404 });
});

scheduled("over TCP a lease has no owner", async (scheduler) => {
  const client = new Nvshare({ baseUrl: `${scheduler.baseUrl}/` });
  const answer = await client.acquire({ taskType: "ASR" });
  assert.equal(answer.result, "ACQUIRED");
  const [listed] = await scheduler.client.leases();
  assert.equal(listed?.pid, undefined);
  await answer.lease.release();
  await assert.rejects(client.patchConfig({ leases: { slots: 2 } }), { status: 403 });
  client.close();
}, { tcp: true });
