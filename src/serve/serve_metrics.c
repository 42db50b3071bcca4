/* The page of /metrics, in the text format of Prometheus. */
#include <inttypes.h>
#include <stdio.h>

#include "base/memory.h"
#include "serve/server_internal.h"

static const int serve_statuses[SERVE_STATUS_COUNT] = SERVE_STATUSES;

void serve_count_status(Server *server, int status) {
    for (int i = 0; i < SERVE_STATUS_COUNT; i++) server->counts.statuses[i] += serve_statuses[i] == status;
}

char *serve_metrics_text(const Server *server) {
    const ServeCounts *counts = &server->counts;
    const struct {
        const char *name, *type, *help;
        int64_t value;
    } rows[] = {
        {"smelt_prompt_tokens_total", "counter", "Tokens of prompts that were computed.", counts->engine.prompt_tokens},
        {"smelt_generated_tokens_total", "counter", "Tokens that were generated.", counts->engine.tokens},
        {"smelt_steps_total", "counter", "Steps of the engine.", counts->engine.steps},
        {"smelt_preemptions_total", "counter", "Samples whose cache rows an older one got.", counts->engine.suspended},
        {"smelt_requests_cancelled_total", "counter", "Requests whose client went away.", counts->canceled},
        {"smelt_sequences_running", "gauge", "Samples that are being generated.", counts->running},
        {"smelt_samples_held", "gauge", "Samples that wait, run, or have not been fetched.", counts->held},
        {"smelt_samples_limit", "gauge", "Most samples that are held.", server->settings->queue},
    };
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) memory_refused(0);
    fprintf(out, "# HELP smelt_responses_total Answers by status.\n# TYPE smelt_responses_total counter\n");
    for (int i = 0; i < SERVE_STATUS_COUNT; i++)
        fprintf(out, "smelt_responses_total{status=\"%d\"} %" PRId64 "\n", serve_statuses[i], counts->statuses[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %" PRId64 "\n", rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name,
            rows[i].value);
    fclose(out);
    return text;
}
