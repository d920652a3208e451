// A scorer of Mastra's that asks gradeloop's judge: `isTaskComplete` goes on until a rubric of yours is met.
//
//   gradeloop mcp --http 127.0.0.1:8765 --grader anthropic:claude-haiku-4-5     (it prints the token)
import { createScorer } from "@mastra/core/evals";

/** The address of `gradeloop mcp --http`, its token, and the rubric: a criterion a line, or a rubric as object. */
export interface JudgeOptions {
  url: string;
  token: string;
  rubric: string | Record<string, unknown>;
}

interface Grade {
  result: "satisfied" | "needs_revision" | "failed" | "no verdict";
  explanation: string;
  rows: { name: string; passed: boolean; reason: string; gap?: string | null }[];
}

/** Calls a tool of the server in a session of its own. */
async function callTool(options: JudgeOptions, name: string, given: Record<string, unknown>): Promise<Grade> {
  const headers: Record<string, string> = {
    Authorization: `Bearer ${options.token}`,
    "Content-Type": "application/json",
    Accept: "application/json, text/event-stream",
  };
  const post = async (message: Record<string, unknown>): Promise<string> => {
    const reply = await fetch(options.url, { method: "POST", headers, body: JSON.stringify({ jsonrpc: "2.0", ...message }) });
    if (!reply.ok) throw new Error(`gradeloop answers ${reply.status}: ${await reply.text()}`);
    headers["Mcp-Session-Id"] ??= reply.headers.get("mcp-session-id") ?? "";
    return reply.text();
  };
  const clientInfo = { name: "mastra-scorer", version: "1" };
  await post({ id: 1, method: "initialize", params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo } });
  await post({ method: "notifications/initialized" });
  const events = await post({ id: 2, method: "tools/call", params: { name, arguments: given } });
  const messages = events.startsWith("{") ? [events] : events.split("\n").filter((line) => line.startsWith("data: {"));
  const answer = messages.map((text) => JSON.parse(text.replace(/^data: /, ""))).find((message) => message.id === 2);
  await fetch(options.url, { method: "DELETE", headers });
  if (!answer?.result || answer.result.isError) throw new Error(answer?.error?.message ?? answer?.result?.content?.[0]?.text ?? "no answer");
  return answer.result.structuredContent;
}

/** Returns a scorer: 1 where the output meets the rubric, else 0. Where there is no verdict it throws, which Mastra marks as `errored`. */
export function gradeloopScorer(options: JudgeOptions) {
  return createScorer<any, any>({ id: "gradeloop", description: "Judged by gradeloop, criterion by criterion" })
    .preprocess(async ({ run }) => {
      const request = run.input?.originalTask;
      const output = typeof run.output === "string" ? run.output : JSON.stringify(run.output);
      const grade = await callTool(options, "grade", { output, rubric: options.rubric, ...(request ? { request } : {}) });
      if (grade.result === "failed" || grade.result === "no verdict") throw new Error(`no verdict: ${grade.explanation}`);
      return grade;
    })
    .generateScore(({ results }) => (results.preprocessStepResult.result === "satisfied" ? 1 : 0))
    .generateReason(({ results }) =>
      results.preprocessStepResult.rows
        .map(({ name, passed, reason, gap }: Grade["rows"][number]) => `${passed ? "✅" : "❌"} ${name}: ${(!passed && gap) || reason}`)
        .join("\n"),
    );
}
