/* Bodies of requests to `smelt serve`: the first byte says whether it is a chat; the rest is a body. A body is refused with a
 * status and one line, which JSON can hold, or gives prompts that fit. */
#include "fuzz.h"

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "serve/answer_internal.h"

enum { POSITIONS = 4096, MOST_SAMPLES = 16 };

static void check_request(const ServeRequest *r, const ServeModel *model) {
    require(r->prompt_count > 0 && (int64_t)r->prompt_count * r->samples <= MOST_SAMPLES && r->samples > 0);
    require(r->sampling.temperature >= 0 && r->sampling.top_p >= 0 && r->sampling.top_p <= 1 && r->sampling.top_k >= 0);
    require(r->stops.count >= 0 && r->stops.count <= MOST_STOP_TEXTS && r->top >= -1 && r->top <= ENGINE_MOST_TOP && r->seed >= -1);
    for (int i = 0; i < r->stops.count; i++) require(r->stops.items[i].size > 0);
    for (size_t i = 0; i < r->prompt_count; i++) {
        const ServePrompt *prompt = &r->prompts[i];
        int64_t tokens = serve_request_tokens(r, model, prompt);
        require(prompt->ids.count > 0 && tokens > 0 && (int64_t)prompt->ids.count + tokens <= POSITIONS);
        require((r->echo && r->kind == SERVE_COMPLETION) || !prompt->text);
    }
}

/* Gives each sample the bytes of the body as tokens; the events together have the text of the whole. */
static void answer(ServeRequest *request, const ServeModel *model, const uint8_t *bytes, size_t size) {
    ServeAnswer answer = {
        .model = model, .request = *request, .sample_count = request->prompt_count * (size_t)request->samples, .id = "id"};
    SCOPED_FREE char *sent = NULL;
    ServeOutput output = {0};
    for (size_t p = 0; p < request->prompt_count && serve_request_scores_prompts(request); p++) {
        ServePrompt *prompt = &request->prompts[p];
        for (size_t i = 1; i < prompt->ids.count; i++)
            serve_scores_add(&prompt->scores, &(EngineToken){.token = prompt->ids.items[i]}, request->top);
    }
    answer.samples = memory_allocate(answer.sample_count * sizeof *answer.samples);
    for (size_t s = 0; s < answer.sample_count; s++) {
        bool goes_on = true;
        serve_sample_begin(&answer.samples[s], model);
        for (size_t i = 0; i < size && i < 64 && goes_on; i++) {
            const EngineScore top[] = {{bytes[i / 2], -1}, {bytes[i / 3], -2}};
            const EngineToken token = {.token = bytes[i], .log_probability = -1, .top = top, .top_count = int_min(request->top, 2)};
            goes_on = serve_sample_add(&answer.samples[s], request, &token);
            const GeneratedText *text = &answer.samples[s].text;
            require(text->shown >= answer.samples[s].sent_bytes && text->shown <= text->size);
            if (i % 3 == 0) serve_answer_events(&answer, &output);
        }
        serve_sample_end(&answer.samples[s], goes_on ? ENGINE_LENGTH : ENGINE_STOP);
        const GeneratedText *text = &answer.samples[s].text;
        for (int i = 0; i < request->stops.count && !goes_on && text->size; i++)
            require(!memmem(text->bytes, text->size, request->stops.items[i].bytes, request->stops.items[i].size));
    }
    serve_answer_events(&answer, &output);
    serve_answer_finish(&answer, &output);
    SCOPED_FREE char *whole = serve_answer_whole(&answer);
    json_auto_t *json = json_loads(whole, JSON_ALLOW_NUL, NULL);
    require(json_array_size(json_object_get(json, "choices")) == answer.sample_count);
    for (size_t s = 0; s < answer.sample_count; s++)
        require(answer.samples[s].closed && answer.samples[s].sent_bytes == answer.samples[s].text.size);
    free(output.bytes);
    serve_answer_free(&answer);
    *request = (ServeRequest){0};
}

FUZZ(serve) {
    Error error = {0};
    ServeFault fault = {0};
    ServeRequest request = {0};
    const ChatOptions options = {.source = "", .template = "chatml", .end_token = 256};
    const TokenIds ends = {0};
    Chat *chat = chat_open(&options, NULL, &error);
    ServeModel model = {.name = "m", .chat = chat_encoder_open(chat), .ends = &ends, .positions = POSITIONS, .samples = MOST_SAMPLES};
    ServeKind kind = size && data[0] % 2 ? SERVE_CHAT : SERVE_COMPLETION;
    if (serve_request_read(&request, kind, &model, (const char *)data + (size > 0), size - (size > 0), &fault)) {
        require(!fault.status);
        check_request(&request, &model);
        answer(&request, &model, data, size);
    } else {
        require((fault.status == 400 || fault.status == 404) && *fault.message && !strchr(fault.message, '\n'));
        free(serve_fault_text(&fault));
    }
    serve_request_free(&request);
    chat_encoder_free(model.chat);
    chat_free(chat);
}
