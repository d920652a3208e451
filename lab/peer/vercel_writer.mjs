// Conversations of Vercel's AI SDK, written by its own functions, with what the SDK itself holds of them: `node vercel_writer.mjs FOLDER`.
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { writeFileSync } from 'node:fs'

const [, , folder, modules] = process.argv
const need = createRequire(`${modules}/`)
const load = async (name) => import(pathToFileURL(need.resolve(name)).href)
const ai = await load('ai')
const { createOpenAI } = await load('@ai-sdk/openai')
const { z } = await load('zod')
const { NodeTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = await load('@opentelemetry/sdk-trace-node')
const { JsonTraceSerializer } = await load('@opentelemetry/otlp-transformer')

const CALLS = [
  [['c1', 'weather', { city: 'Zürich' }], ['c2', 'broken', { deep: { pages: [1, 2] } }]],
  [['c3', 'weather', { city: '<tool call>ls</tool call>' }]],
]
const USAGE = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 }

/** What the model says after so many results of tools: the text, and the calls. */
function answer(asked, mayCall) {
  const results = asked.filter((one) => one.role === 'tool' || one.type === 'function_call_output').length
  if (results === 0 && mayCall) return ['<think>I look first.</think>I look.', CALLS[0]]
  if (results === 2) return ['', CALLS[1]]
  return ['Sunny in Zürich.', []]
}

function chat(text, calls) {
  const tool_calls = calls.map(([id, name, args], index) => ({
    index, id, type: 'function', function: { name, arguments: JSON.stringify(args) },
  }))
  return { role: 'assistant', content: text || null, ...(calls.length ? { tool_calls } : {}) }
}

function responses(text, calls) {
  const said = text.replace(/<think>.*<\/think>/, '')
  const output = [
    ...(text.startsWith('<think>') ? [{ type: 'reasoning', id: 'rs_1', summary: [{ type: 'summary_text', text: 'I look first.' }] }] : []),
    ...(said ? [{ type: 'message', id: 'm', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: said, annotations: [] }] }] : []),
    ...calls.map(([id, name, args]) => ({ type: 'function_call', id: `f${id}`, call_id: id, name, arguments: JSON.stringify(args), status: 'completed' })),
  ]
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2, input_tokens_details: { cached_tokens: 0 }, output_tokens_details: { reasoning_tokens: 0 } }
  return { id: 'r', object: 'response', created_at: 1, model: 'gpt-5', status: 'completed', output, usage }
}

const server = createServer((request, reply) => {
  let body = ''
  request.on('data', (piece) => { body += piece })
  request.on('end', () => {
    const sent = JSON.parse(body)
    const [text, calls] = answer(sent.messages ?? sent.input, Boolean(sent.tools))
    if (!sent.stream) {
      reply.setHeader('content-type', 'application/json')
      const whole = { id: 'c', object: 'chat.completion', created: 1, model: 'gpt-5', usage: USAGE, choices: [{ index: 0, message: chat(text, calls), finish_reason: calls.length ? 'tool_calls' : 'stop' }] }
      reply.end(JSON.stringify(sent.messages ? whole : responses(text, calls)))
      return
    }
    reply.setHeader('content-type', 'text/event-stream')
    const piece = (delta, finish_reason = null) => reply.write(`data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'gpt-5', choices: [{ index: 0, delta, finish_reason }] })}\n\n`)
    for (const word of text.split(/(?<= )/)) piece({ content: word })
    if (calls.length) piece({ tool_calls: chat('', calls).tool_calls })
    piece({}, calls.length ? 'tool_calls' : 'stop')
    reply.end('data: [DONE]\n\n')
  })
})
await new Promise((ready) => server.listen(0, '127.0.0.1', ready))

const openai = createOpenAI({ apiKey: 'none', baseURL: `http://127.0.0.1:${server.address().port}/v1` })
const thinking = ai.wrapLanguageModel({ model: openai.chat('gpt-5'), middleware: ai.extractReasoningMiddleware({ tagName: 'think' }) })
const tools = {
  weather: ai.tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => ({ city, sky: 'clear' }) }),
  broken: ai.tool({ inputSchema: z.object({ deep: z.any() }), execute: async () => { throw new Error('it broke') } }),
}
const exporter = new InMemorySpanExporter()
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
provider.register()
const tracer = provider.getTracer('ai')
if (ai.registerTelemetry && ai.Output && process.argv[4]) {
  const otel = await load('@ai-sdk/otel')
  ai.registerTelemetry(new otel[process.argv[4]]({ tracer }))
}
const common = { tools, stopWhen: ai.stepCountIs(6), system: 'Be brief.', experimental_telemetry: { isEnabled: true, tracer } }
const held = {}

/** Keep what the steps of a generation hold, and the results as the model was sent them. */
function ofSteps(steps, messages) {
  const parts = steps.flatMap((step) => step.content)
  const of = (type) => parts.filter((part) => part.type === type)
  const results = messages.filter((message) => message.role === 'tool').flatMap((message) => message.content)
  return {
    texts: of('text').map((part) => part.text),
    reasoning: of('reasoning').map((part) => part.text),
    calls: of('tool-call').map((part) => [part.toolCallId, part.toolName, part.input]),
    results: results.map((part) => [part.toolCallId, part.output.value, part.output.type.startsWith('error')]),
  }
}

/** Keep what UI messages hold. */
function ofParts(messages) {
  const parts = messages.flatMap((message) => message.parts)
  const called = parts.filter((part) => ai.isToolUIPart?.(part) ?? ai.isToolOrDynamicToolUIPart(part))
  const name = (part) => part.toolName ?? part.type.slice('tool-'.length)
  return {
    messages: messages.length,
    texts: parts.filter((part) => part.type === 'text' && part.text).map((part) => part.text),
    reasoning: parts.filter((part) => part.type === 'reasoning').map((part) => part.text),
    calls: called.map((part) => [part.toolCallId, name(part), part.input]),
    results: called.filter((part) => part.state.startsWith('output-')).map((part) => [part.toolCallId, part.output ?? part.errorText, part.state === 'output-error']),
    files: parts.filter((part) => ['file', 'source-url', 'source-document'].includes(part.type)).length,
    others: parts.filter((part) => part.type.startsWith('data-')).length,
  }
}

function write(name, value, counts) {
  writeFileSync(`${folder}/${name}`, typeof value === 'string' ? value : JSON.stringify(value, null, 1))
  held[name] = counts
}

/** Write the spans of what was generated since the last call, as an OTLP exporter sends them. */
function writeSpans(name, counts) {
  write(name, new TextDecoder().decode(JsonTraceSerializer.serializeRequest(exporter.getFinishedSpans())), counts)
  exporter.reset()
}

const asked = { role: 'user', content: 'Where is Zürich?' }
for (const [name, model] of [['chat', thinking], ['responses', openai.responses('gpt-5')]]) {
  const done = await ai.generateText({ ...common, model, messages: [asked] })
  const said = done.responseMessages ?? done.response.messages
  const counts = ofSteps(done.steps, said)
  const texts = ['Be brief.', asked.content, ...counts.texts]
  write(`${name}.model_messages.json`, [asked, ...said], { ...counts, texts: texts.slice(1), messages: said.length + 1 })
  write(`${name}.object.json`, { system: 'Be brief.', messages: [asked, ...said] }, { ...counts, texts, messages: said.length + 2 })
  writeSpans(`${name}.spans.json`, { ...counts, texts, messages: said.length + 2 })
}

const question = { id: 'u1', role: 'user', parts: [
  { type: 'text', text: 'Where is Zürich?' },
  { type: 'file', mediaType: 'image/png', filename: 'map.png', url: 'data:image/png;base64,AAAA' },
] }
let saved
let streamed
const stream = ai.createUIMessageStream({
  originalMessages: [question],
  execute: async ({ writer }) => {
    writer.write({ type: 'data-notice', id: 'n', data: { words: 'looking' } })
    writer.write({ type: 'source-url', sourceId: 's', url: 'https://x.example', title: 'X' })
    const done = ai.streamText({ ...common, model: thinking, messages: await ai.convertToModelMessages([question]) })
    streamed = done
    const options = { sendReasoning: true, sendSources: true, onError: (error) => error.message }
    writer.merge(ai.toUIMessageStream ? ai.toUIMessageStream({ stream: done.fullStream ?? done.stream, ...options }) : done.toUIMessageStream(options))
  },
  onError: (error) => `failed: ${error.message}`,
  onFinish: ({ messages }) => { saved = messages },
})
const sent = []
for await (const chunk of stream) sent.push(chunk)
const ui = ofParts(saved)
write('ui_messages.json', saved, ui)
write('ui_messages.chat.json', { id: 'chat-1', messages: saved }, ui)
write('ui_message.json', saved[1], ofParts([saved[1]]))
const model = await ai.convertToModelMessages(saved)
write('converted.json', model, { ...ui, messages: model.length, others: undefined, files: 1 })
const replied = (await streamed.responseMessages) ?? (await streamed.response).messages
const ofStream = ofSteps(await streamed.steps, replied)
writeSpans('stream.spans.json', { ...ofStream, texts: ['Be brief.', 'Where is Zürich?', ...ofStream.texts.filter(Boolean)], messages: replied.length + 2, files: 1 })

const failing = createOpenAI({ apiKey: 'none', baseURL: 'http://127.0.0.1:1/v1' })
await ai.generateText({ ...common, model: failing.chat('gpt-5'), messages: [asked], maxRetries: 0 }).catch(() => undefined)
writeSpans('failed.spans.json', { texts: ['Be brief.', asked.content], errors: 1, messages: 3 })

const whole = await ai.generateText({ ...common, tools: undefined, model: openai.chat('gpt-5'), prompt: 'Where is Zürich?' })
writeSpans('prompt.spans.json', { texts: ['Be brief.', 'Where is Zürich?', whole.text], messages: 3 })
writeFileSync(`${folder}/counts.json`, JSON.stringify(held, null, 1))
server.close()
