// A service in TypeScript that has its answers graded; before.ts has a model answer once. It prints how it goes, and the answer.
//
//   npm install && npm run contract && npm run build
//   TEMPORAL_ADDRESS=127.0.0.1:7233 npm start anthropic:claude-haiku-4-5
import { Client, Connection, type WorkflowHandle } from "@temporalio/client";
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import type { Event, RunResult, ThreadRequest } from "./contract.js";

/** The answer of the query `events`. */
interface EventPage {
  items: Event[];
  next: number | null;
}

/** Asks a thread; an answer that would run ahead of its history is asked for again. */
async function query<T>(thread: WorkflowHandle, name: string, ...args: unknown[]): Promise<T> {
  for (;;) {
    try {
      return await thread.query<T, unknown[]>(name, ...args);
    } catch (error) {
      if (!(error instanceof Error && error.message.includes("[READ_AGAIN]"))) throw error;
      await pause(200);
    }
  }
}

/** Yields every event once and in order, until the thread has ended. */
async function* watch(thread: WorkflowHandle): AsyncGenerator<Event> {
  let ended = false;
  const end = thread.result().then(() => (ended = true), () => (ended = true));
  for (let seen = 0; ; ) {
    const last = ended; // read once more after the end: what came with it is there, too
    const page: EventPage = await query(thread, "events", seen, 100);
    yield* page.items;
    seen = page.items.at(-1)?.seq ?? seen;
    if (last && page.next === null) return;
    if (page.next === null) await Promise.race([end, pause(500)]);
  }
}

const model = process.argv[2];
if (!model) throw new Error("Name the model: npm start anthropic:claude-haiku-4-5");
const request: ThreadRequest = {
  messages: [{ role: "user", content: "The chain of my new bike has snapped after two days. What now?" }],
  rubric: "- the answer names a concrete next step for the customer\n- it promises no refund",
  generator: { model, system_prompt: "You answer the customers of a bicycle shop." },
  grader: { model },
};

const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS ?? "127.0.0.1:7233" });
const client = new Client({ connection });
const thread = await client.workflow.start("GradingThread", {
  taskQueue: process.env.TASK_QUEUE ?? "gradeloop",
  workflowId: `answer-${randomUUID()}`,
  args: [request],
});
for await (const event of watch(thread)) {
  if (event.type === "rubric_evaluation_end") console.log(`iteration ${(event.iteration ?? 0) + 1}: ${event.result}`);
}
const result = (await thread.result()) as RunResult;
console.log(result.status === "satisfied" ? result.output : `${result.status}: ${result.error ?? result.evaluations.at(-1)?.explanation}`);
await connection.close();
process.exitCode = result.status === "satisfied" ? 0 : 1;
