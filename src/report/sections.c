/* Text sections of one run's page: warnings, figures, data, settings, process starts. Called by
 * report.c. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "report/page_internal.h"

/* -- Numbers ------------------------------------------------------------------------------------------------------- */

void page_loss(double value, char text[32]) {
    if (fabs(value) < 1e6) snprintf(text, 32, "%.4f", value);
    else if (isfinite(value)) snprintf(text, 32, "%.3e", value);
    else snprintf(text, 32, "not finite");
}

void page_steps(int64_t first, int64_t last, char text[64]) {
    if (first == last) snprintf(text, 64, "step %lld", (long long)first);
    else snprintf(text, 64, "steps %lld\xE2\x80\x93%lld", (long long)first, (long long)last);
}

bool page_date(double time, char text[64]) {
    struct tm parts;
    time_t seconds = fabs(time) < 1e11 ? (time_t)time : 0;
    return seconds > 0 && gmtime_r(&seconds, &parts) && strftime(text, 64, "%Y-%m-%d %H:%M UTC", &parts) > 0;
}

const RunStart *page_last_start(const History *history) {
    return history->start_count ? &history->starts[(history->start_count - 1) % HISTORY_STARTS] : NULL;
}

/* -- Headline numbers ---------------------------------------------------------------------------------------------- */

/* If an item has no value, the note gives the reason. */
static void number_item(const Page *page, const char *name, const char *value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void number_item(const Page *page, const char *name, const char *value, const char *format, ...) {
    char note[PAGE_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    if (page->markdown) fprintf(page->out, "| %s | %s | %s |\n", name, value ? value : "unknown", note);
    else
        fprintf(page->out, "<div><dt>%s</dt><dd class=\"value%s\">%s</dd><dd class=\"note\">%s</dd></div>\n", name, value ? "" : " none",
            value ? value : "unknown", note);
}

static void loss_items(const Page *page) {
    const History *history = page->views->history;
    const Marks *evaluations = &history->evaluations;
    const Mark *last = &evaluations->last;
    char value[32], other[32];
    int64_t steps;
    page_loss(history->last_loss, value);
    page_loss(history_recent_loss(history, &steps), other);
    if (history->losses > 1) number_item(page, "Training loss", value, "last %lld step%s: %s", (long long)steps, plural(steps), other);
    else number_item(page, "Training loss", history->losses ? value : NULL, "%s", history->losses ? "one step" : "no finite loss");
    if (evaluations->thin.seen == 0) {
        number_item(page, "Validation loss", NULL, "not evaluated yet");
        number_item(page, "Bits per byte", NULL, "not evaluated yet");
        return;
    }
    page_loss(last->value, value);
    page_loss(history->best.value, other);
    if (last->value <= history->best.value)
        number_item(page, "Validation loss", value, "step %lld, the best so far", (long long)last->step);
    else number_item(page, "Validation loss", value, "best: %s at step %lld", other, (long long)history->best.step);
    page_loss(last->other, value);
    number_item(page, "Bits per byte", isfinite(last->other) ? value : NULL, "of validation text");
}

static void speed_item(const Page *page) {
    const History *history = page->views->history;
    const double median = sample_median(&history->speed), tflops = sample_median(&history->tflops);
    const double best = sample_median(&history->best_percent), peak = sample_median(&history->peak_percent);
    char number[32], value[64], flops[64] = "", of_best[64] = "", of_peak[64] = "";
    chart_number(tflops, 3, number);
    if (isfinite(tflops)) snprintf(flops, sizeof flops, ", %s TFLOP/s", number);
    if (isfinite(best)) snprintf(of_best, sizeof of_best, ", %.0f%% of the best measured", best);
    if (isfinite(peak)) snprintf(of_peak, sizeof of_peak, ", %.0f%% of peak", peak);
    chart_number(median, 4, number);
    snprintf(value, sizeof value, "%s tok/s", number);
    number_item(page, "Speed", isfinite(median) ? value : NULL, "median%s%s%s", flops, of_best, of_peak);
}

/* Returns the number of ranks of all starts of a run; 0: unknown, or it changed. */
static int64_t ranks_of(const RunView *view) {
    const json_t *history = json_object_get(view->record, "history");
    int64_t ranks = json_integer_value(json_object_get(json_array_get(history, 0), "ranks"));
    size_t i;
    json_t *start;
    json_array_foreach((json_t *)history, i, start) if (json_integer_value(json_object_get(start, "ranks")) != ranks) return 0;
    return ranks;
}

static void time_item(const Page *page) {
    const double left = page->views->state.seconds_left, seconds = page->views->history->step_seconds;
    const int64_t ranks = ranks_of(page->views);
    char value[32], rest[32], hours[32], of_ranks[96] = "", to_end[96] = "";
    log_format_duration(seconds, value);
    log_format_duration(left, rest);
    chart_number(seconds * (double)ranks / 3600, 4, hours);
    if (ranks > 1) snprintf(of_ranks, sizeof of_ranks, " of %lld ranks: %s device hours", (long long)ranks, hours);
    if (left > 0) snprintf(to_end, sizeof to_end, "; %s to step %lld", rest, (long long)page->views->settings.steps);
    number_item(page, "Time", seconds > 0 ? value : NULL, "in training steps%s%s", of_ranks, to_end);
}

/* Other runs may use some of the sampled GPUs, so energy per token is shown only with one rank per GPU. */
static void energy_item(const Page *page) {
    const double joules = page->views->history->joules, tokens = page->views->history->tokens, kilowatt_hour = 3.6e6;
    const int64_t gpus = page->views->history->sampled_gpus, ranks = ranks_of(page->views);
    char number[32], value[48], of_token[64] = "";
    if (!(joules > 0)) return;
    const bool large = joules >= 0.1 * kilowatt_hour;
    chart_number(large ? joules / kilowatt_hour : joules, 4, number);
    snprintf(value, sizeof value, "%s %s", number, large ? "kWh" : "J");
    chart_number(joules / tokens, 3, number);
    if (ranks > 0 && ranks == gpus && tokens > 0) snprintf(of_token, sizeof of_token, ", %s J per token", number);
    number_item(page, "Energy", value, "of the %lld GPU%s of the machine of rank 0%s", (long long)gpus, plural(gpus), of_token);
}

static void cost_item(const Page *page) {
    const RunView *view = page->views;
    const double price = view_knows_settings(view) ? view->settings.metrics.price : 0;
    const double hours = view->history->step_seconds * (double)ranks_of(view) / 3600;
    char number[32], value[48], of_hours[32], of_price[32];
    if (!(price > 0) || !(hours > 0)) return;
    chart_number(hours, 4, of_hours);
    chart_number(price, 4, of_price);
    chart_number(hours * price, 4, number);
    snprintf(value, sizeof value, "$%s", number);
    number_item(page, "Cost", value, "of %s device hours in training steps, at $%s", of_hours, of_price);
}

static void print_numbers(const Page *page) {
    const History *history = page->views->history;
    const RunStart *start = page_last_start(history);
    char value[32], other[32];
    loss_items(page);
    chart_number(history->tokens, 4, value);
    number_item(page, "Tokens", history->tokens > 0 ? value : NULL, "in %lld step%s", (long long)history->steps, plural(history->steps));
    time_item(page);
    speed_item(page);
    chart_number(start ? start->parameters : NAN, 4, value);
    chart_number(start ? start->active_parameters : NAN, 4, other);
    bool known = start && isfinite(start->parameters), active = start && isfinite(start->active_parameters);
    number_item(page, "Parameters", known ? value : NULL, "%s%s", active ? other : "", active ? "  active per token" : "of the model");
    log_format_bytes(history->memory_bytes, value);
    number_item(page, "Memory", history->memory_bytes > 0 ? value : NULL, "most in use");
    energy_item(page);
    cost_item(page);
}

void page_numbers(const Page *page) {
    fputs("<dl class=\"numbers\">\n", page->out);
    print_numbers(page);
    fputs("</dl>\n", page->out);
}

static void warn_of_run(const Page *page, const RunView *view) {
    const History *history = view->history;
    const int64_t skipped = history->skipped.thin.seen, broken = history->broken.thin.seen, ignored = history->ignored;
    if (skipped == 0 && broken == 0 && ignored == 0 && !view->trouble.code) return;
    fputs("<div class=\"warning\" role=\"note\">\n", page->out);
    if (page->count > 1) {
        fputs("<p><b>", page->out);
        chart_escape(page->out, view->name);
        fputs("</b></p>\n", page->out);
    }
    if (view->trouble.code) {
        fputs("<p>", page->out);
        chart_escape(page->out, view->trouble.message);
        fputs("</p>\n", page->out);
    }
    if (skipped > 0) fprintf(page->out, "<p>%lld update%s skipped.</p>\n", (long long)skipped, skipped == 1 ? " was" : "s were");
    if (broken > 0) fprintf(page->out, "<p>The loss of %lld step%s was not finite.</p>\n", (long long)broken, plural(broken));
    if (ignored > 0)
        fprintf(page->out, "<p>%lld of %lld lines of metrics.jsonl were invalid and are ignored.</p>\n", (long long)ignored,
            (long long)history->lines);
    fputs("</div>\n", page->out);
}

void page_warnings(const Page *page) {
    for (int i = 0; i < page->count; i++) warn_of_run(page, &page->views[i]);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

/* `prompt` is the common one; a row with a different prompt prints its own. */
static void excerpt_row(const Page *page, const Excerpt *excerpt, const char *prompt) {
    fprintf(page->out, "<tr><th scope=\"row\">step %lld</th><td class=\"text\">", (long long)excerpt->step);
    if (strcmp(excerpt->prompt, prompt) != 0) {
        fputs("<i>", page->out);
        chart_escape(page->out, excerpt->prompt);
        fputs("</i>", page->out);
    }
    chart_escape(page->out, excerpt->text);
    fputs("</td></tr>\n", page->out);
}

void page_samples(const Page *page) {
    const Excerpts *excerpts = &page->views->history->excerpts;
    const Excerpt *last = &excerpts->last;
    if (excerpts->thin.seen == 0) return;
    fputs("<section>\n<h2>Samples per evaluation</h2>\n<p class=\"soft text\">What the model wrote after: ", page->out);
    chart_escape(page->out, last->prompt);
    fputs("</p>\n<table class=\"list\">\n", page->out);
    excerpt_row(page, last, last->prompt);
    for (size_t i = excerpts->thin.count; i-- > 0;)
        if (excerpts->items[i].step != last->step) excerpt_row(page, &excerpts->items[i], last->prompt);
    fputs("</table>\n</section>\n", page->out);
}

/* -- Data ---------------------------------------------------------------------------------------------------------- */

static void row(const Page *page, const char *name, const char *value, const char *note) {
    fputs("<tr><th scope=\"row\">", page->out);
    chart_escape(page->out, name);
    fputs("</th><td>", page->out);
    chart_escape(page->out, value);
    fputs("</td><td class=\"soft\">", page->out);
    chart_escape(page->out, note);
    fputs("</td></tr>\n", page->out);
}

/* Returns run.json's description of the data in a setting: "12 documents, 34567 tokens, xxh3 ...";
 * "" if unknown. */
static const char *content_of(const RunView *view, const char *name) {
    const char *text = json_string_value(json_object_get(json_object_get(view->record, "identity"), name));
    return text ? text : "";
}

/* Writes the shares that a phase has read, beside the requested ones: "web 80.01% of 80%, code
 * 19.99% of 20%". */
static void describe_read(const json_t *sources, char *text, size_t size) {
    const char *name;
    json_t *source;
    size_t length = 0;
    json_object_foreach((json_t *)sources, name, source) {
        double asked = json_number_value(json_object_get(source, "asked")), read = json_number_value(json_object_get(source, "read"));
        if (length < size)
            length += (size_t)snprintf(
                text + length, size - length, "%s%.40s %.2f%% of %.4g%%", length ? ", " : "read: ", name, 100 * read, 100 * asked);
    }
}

static void phase_rows(const Page *page, const History *history) {
    size_t i;
    json_t *phase;
    json_array_foreach(history->phases, i, phase) {
        char name[96], settings[PAGE_TEXT], rope[32], note[PAGE_TEXT] = "";
        chart_number(json_number_value(json_object_get(phase, "rope_theta")), 6, rope);
        snprintf(name, sizeof name, "phase %zu, %.64s", i + 1, json_string_value(json_object_get(phase, "name")));
        snprintf(settings, sizeof settings, "from step %lld on, sequences of %lld tokens, %lld tokens per step, RoPE base %s",
            (long long)json_integer_value(json_object_get(phase, "step")) + 1,
            (long long)json_integer_value(json_object_get(phase, "length")),
            (long long)json_integer_value(json_object_get(phase, "batch_tokens")), rope);
        describe_read(json_object_get(json_array_get(history->mixture, i), "sources"), note, sizeof note);
        row(page, name, settings, note);
    }
}

static void source_rows(const Page *page, const RunView *view) {
    static const char prefix[] = "data.train.source.";
    const json_t *identity = json_object_get(view->record, "identity");
    const char *key;
    json_t *path;
    json_object_foreach((json_t *)identity, key, path) {
        const char *name = key + sizeof prefix - 1;
        if (!starts_with(key, prefix) || strchr(name, '.') || !json_is_string(path)) continue;
        SCOPED_FREE char *shown = memory_format("source %s", name), *content = memory_format("%s.content", key);
        row(page, shown, json_string_value(path), content_of(view, content));
    }
}

void page_data(const Page *page) {
    const RunView *view = page->views;
    const DataConfig *data = &view->settings.data;
    const BatchConfig *batch = &view->settings.batch;
    const double evaluated = view->history->evaluated_tokens;
    char text[64], note[PAGE_TEXT] = "";
    if (!view_knows_settings(view)) return;
    fputs("<section>\n<h2>Data</h2>\n<table class=\"list\">\n", page->out);
    row(page, "training", data->train, content_of(view, "data.train.content"));
    source_rows(page, view);
    phase_rows(page, view->history);
    const char *content = content_of(view, "data.valid.content");
    chart_number(evaluated, 6, text);
    if (isfinite(evaluated)) snprintf(note, sizeof note, "%s%s%s tokens in each evaluation", content, *content ? "; " : "", text);
    else snprintf(note, sizeof note, "%s", content);
    snprintf(text, sizeof text, "%.4g%% of each text of the training data", 100 * data->valid_fraction);
    bool split = data->valid_fraction > 0 && !view->history->phases; /* mixtures are not split */
    if (data->valid_documents > 0) {
        snprintf(text, sizeof text, "%.4g%% of the documents of the training data", 100 * data->valid_documents);
        split = true;
    }
    row(page, "validation", *data->valid ? data->valid : split ? text : "none", note);
    row(page, "tokenizer", *data->tokenizer ? data->tokenizer : "the tokenizer of the data, or bytes", "");
    snprintf(text, sizeof text, "%lld tokens", (long long)data->length);
    const char *mask = data->document_mask ? "attention stays within a document" : "attention crosses documents";
    row(page, "sequence", view->history->phases ? "the length of the phase" : text, mask);
    snprintf(text, sizeof text, "%lld tokens", (long long)batch->tokens);
    snprintf(note, sizeof note, "in microbatches of %lld sequence%s", (long long)batch->sequences, plural(batch->sequences));
    if (!view->history->phases) row(page, "step", text, note);
    fputs("</table>\n</section>\n", page->out);
}

/* -- Settings ------------------------------------------------------------------------------------------------------ */

/* Returns whether the page shows a setting. The run's own path is not a training setting. */
bool page_tells_setting(const Option *option) { return strcmp(option->name, "run") != 0; }

/* Prints the settings that differ from the defaults; returns their number. */
static int64_t changed_rows(const Page *page) {
    const RunView *view = page->views;
    int64_t count = 0;
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *option = &config_table.rows[i];
        char value[PAGE_TEXT], initial[PAGE_TEXT], note[PAGE_TEXT + 16];
        options_format_value(option, &view->settings, value, sizeof value);
        options_format_value(option, &view->defaults, initial, sizeof initial);
        if (!page_tells_setting(option) || strcmp(value, initial) == 0) continue;
        snprintf(note, sizeof note, "default: %s", strcmp(initial, "\"\"") == 0 || !*initial ? "none" : initial);
        if (page->markdown) fprintf(page->out, "- `%s`: `%s`\n", option->name, value);
        else row(page, option->name, value, note);
        count++;
    }
    return count;
}

static void changed_settings(const Page *page) {
    fputs("<table class=\"list\">\n", page->out);
    int64_t count = changed_rows(page);
    fputs("</table>\n", page->out);
    if (count == 0) fputs("<p class=\"soft\">All are the defaults.</p>\n", page->out);
}

/* Returns where the comment of a line begins: at a '#' that starts the line or follows a blank,
 * outside quotes. */
static size_t comment_begin(const char *line) {
    char quote = 0;
    size_t i = 0;
    for (; line[i]; i++) {
        if (quote) {
            if (quote == '"' && line[i] == '\\' && line[i + 1]) i++;
            else if (line[i] == quote) quote = 0;
        } else if (line[i] == '"' || line[i] == '\'') {
            quote = line[i];
        } else if (line[i] == '#' && (i == 0 || line[i - 1] == ' ')) {
            break;
        }
    }
    return i;
}

static void config_line(const Page *page, char *line) {
    size_t comment = comment_begin(line);
    char first = line[comment];
    line[comment] = '\0';
    chart_escape(page->out, line);
    line[comment] = first;
    if (!first) return;
    fputs("<i>", page->out);
    chart_escape(page->out, line + comment);
    fputs("</i>", page->out);
}

static void config_text(const Page *page) {
    SCOPED_FREE char *text = memory_copy_string(page->views->config);
    char *place = text;
    fputs("<pre>", page->out);
    for (char *line; (line = strsep(&place, "\n")) && (place || *line);) {
        config_line(page, line);
        putc('\n', page->out);
    }
    fputs("</pre>\n", page->out);
}

void page_settings(const Page *page) {
    const RunView *view = page->views;
    if (!view->config) return;
    fputs("<section>\n<div class=\"head\"><h2>Settings</h2><p class=\"soft\">", page->out);
    if (view->unreadable.code) chart_escape(page->out, view->unreadable.message);
    else fputs("that differ from the defaults of smelt " SMELT_VERSION, page->out);
    fputs("</p></div>\n", page->out);
    if (!view->unreadable.code) changed_settings(page);
    fprintf(page->out, "<details%s><summary>All settings: config.yaml</summary>\n", view->unreadable.code ? " open" : "");
    config_text(page);
    fputs("</details>\n</section>\n", page->out);
}

void page_changes(const Page *page) {
    json_auto_t *changes = view_changes(page->views);
    size_t index;
    json_t *one;
    if (json_array_size(changes) == 0) return;
    fputs("<section>\n<h2>Changes of settings</h2>\n<table class=\"list\">\n", page->out);
    json_array_foreach(changes, index, one) {
        const char *change = json_string_value(json_object_get(one, "change")), *date = json_string_value(json_object_get(one, "time"));
        char when[64];
        snprintf(when, sizeof when, "from step %lld on", (long long)json_integer_value(json_object_get(one, "first")));
        row(page, when, change ? change : "", date ? date : "");
    }
    fputs("</table>\n</section>\n", page->out);
}

/* -- Process starts ------------------------------------------------------------------------------------------------ */

static void start_item(const Page *page, const RunStart *start, int64_t number) {
    char date[64], steps[64] = "no step yet";
    if (!page_date(start->time, date)) snprintf(date, sizeof date, "date unknown");
    if (start->last_step > start->step) page_steps(start->step + 1, start->last_step, steps);
    fprintf(page->out, "<li><p><b>%s</b>, process %lld, %s</p><p>", date, (long long)number, steps);
    chart_escape(page->out, start->machine);
    fputs("</p><p class=\"soft\">", page->out);
    chart_escape(page->out, start->details);
    fputs("</p></li>\n", page->out);
}

/* Prints the process starts. Starts without a step are omitted except the newest, because it may be
 * about to train. */
void page_starts(const Page *page) {
    const History *history = page->views->history;
    const int64_t count = history->start_count, oldest = count > HISTORY_STARTS ? count - HISTORY_STARTS : 0;
    int64_t idle = 0;
    if (count == 0) return;
    fputs("<section>\n<h2>History</h2>\n<ol>\n", page->out);
    for (int64_t i = count; i-- > oldest;) {
        const RunStart *start = &history->starts[i % HISTORY_STARTS];
        if (start->last_step > start->step || i + 1 == count) start_item(page, start, i + 1);
        else idle++;
    }
    if (idle > 0) fprintf(page->out, "<li class=\"soft\">and %lld without a kept step</li>\n", (long long)idle);
    if (oldest > 0) fprintf(page->out, "<li class=\"soft\">and %lld earlier</li>\n", (long long)oldest);
    fputs("</ol>\n</section>\n", page->out);
}

/* -- Log and summary ----------------------------------------------------------------------------------------------- */

void page_log(const Page *page) {
    const char *log = page->views->log;
    if (!log || !*log) return;
    fputs("<section>\n<div class=\"head\"><h2>Log</h2><p class=\"soft\">the end of log.txt</p></div>\n<pre class=\"log\" tabindex=\"0\">",
        page->out);
    chart_escape(page->out, log);
    fputs("</pre>\n</section>\n", page->out);
}

/* The caller frees. */
static char *summarize(const Page *page) {
    const RunView *view = page->views;
    const RunStart *start = page_last_start(view->history);
    char *text = NULL;
    size_t length;
    Page inner = *page;
    inner.markdown = true;
    inner.out = open_memstream(&text, &length);
    if (!inner.out) memory_refused(0);
    SCOPED_FREE char *origin = view_origin(view);
    fprintf(inner.out, "## %s\n\n%s. %s.\n", view->name, view->state_text, start ? start->machine : "Unknown machine");
    if (origin) fprintf(inner.out, "Forked from %s.\n", origin);
    fputs("\n| | | |\n|---|---|---|\n", inner.out);
    print_numbers(&inner);
    if (view_knows_settings(view))
        fputs("\nSettings that differ from the defaults of smelt " SMELT_VERSION ":\n\n", inner.out), changed_rows(&inner);
    fclose(inner.out);
    return text;
}

void page_summary(const Page *page) {
    SCOPED_FREE char *text = summarize(page);
    fputs("<section>\n<div class=\"head\"><h2>Summary</h2><p class=\"soft\">in Markdown, to copy</p></div>\n<pre class=\"log\" "
          "tabindex=\"0\">",
        page->out);
    chart_escape(page->out, text);
    fputs("</pre>\n</section>\n", page->out);
}
