/* `smelt cost [tokens=1T] [key=value ...] NAME key=value ... [NAME key=value ...]` */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "app/command.h"
#include "base/scope.h"
#include "advise/cost.h"

enum { MOST_OFFERS = 16 };

typedef struct CostOptions {
    double tokens;
    Offer offer;
} CostOptions;
typedef struct NamedOffer {
    const char *name;
    CostOptions options;
} NamedOffer;

#define FIELD(name) offsetof(CostOptions, offer.name)
static const Option rows[] = {
    {"tokens", OPTION_REAL, offsetof(CostOptions, tokens), "1T", 1, 1e18, NULL, "tokens", "tokens to train on"},
    REAL_OPTION(price, "0", 0, 1e6, "$/h", "price of a GPU"),
    REAL_OPTION(rate, "0", 0, 1e12, "tokens/s", "speed per GPU, measured or from smelt forecast"),
    INT_OPTION(gpus, "8", 1, 1e7, "GPUs", "GPUs that train together"),
    INT_OPTION(per_node, "8", 1, 1024, "GPUs", "GPUs per node; an interruption takes the whole node"),
    REAL_OPTION(interruptions, "0", 0, 1e4, "1/day", "interruptions per node: reclaimed spot instances and failures"),
    REAL_OPTION(checkpoint, "10", 0, 1e6, "s", "time that a checkpoint blocks training"),
    REAL_OPTION(restart, "300", 0, 1e6, "s", "time from an interruption to the next step"),
    REAL_OPTION(warning, "0", 0, 1e6, "s", "warning time before an interruption; if it suffices for a checkpoint, no work is lost"),
    REAL_OPTION(interval, "0", 0, 1e9, "s", "time between checkpoints; 0: the optimum, by Daly's formula"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

static bool read_offers(int argc, char **argv, NamedOffer *offers, int *count, OptionStrings *strings, Error *error) {
    CostOptions shared;
    options_defaults(&table, &shared, strings);
    for (int i = 1; i < argc; i++) {
        if (strchr(argv[i], '=')) {
            CostOptions *target = *count ? &offers[*count - 1].options : &shared;
            if (*count && !strncmp(argv[i], "tokens=", 7))
                return error_set(error, ERROR_USAGE, "'%s': give the budget before the first offer", argv[i]);
            if (!options_set(&table, target, strings, argv[i], error)) return false;
        } else {
            if (*count == MOST_OFFERS) return error_set(error, ERROR_USAGE, "'%s': too many offers; the limit is %d", argv[i], MOST_OFFERS);
            offers[(*count)++] = (NamedOffer){argv[i], shared};
        }
    }
    if (*count == 0) offers[(*count)++] = (NamedOffer){"offer", shared};
    for (int i = 0; i < *count; i++)
        if (!(offers[i].options.offer.price > 0 && offers[i].options.offer.rate > 0))
            return error_set(error, ERROR_USAGE,
                "%s has no price or no rate: set price=DOLLARS (per GPU and hour) and rate=TOKENS_PER_SECOND (per GPU)", offers[i].name);
    return true;
}

static void print_duration(double seconds, FILE *file) {
    char text[32];
    log_format_duration(seconds, text);
    fprintf(file, " %12s", seconds < INFINITY ? text : "-");
}

static void print_offers(const NamedOffer *offers, int count, FILE *file) {
    char tokens[32];
    log_format_count(offers[0].options.tokens, tokens);
    fprintf(file, "%s tokens\n%-14s %8s %6s %10s %12s %10s %12s %12s %12s %12s %12s %10s\n", tokens, "offer", "$/GPU/h", "GPUs",
        "tok/s/GPU", "dollars", "days", "$/1G tokens", "interrupted", "checkpoints", "(Young)", "dollars then", "days then");
    for (int i = 0; i < count; i++) {
        const Offer *offer = &offers[i].options.offer;
        CostEstimate cost = cost_of(offer, offers[i].options.tokens);
        fprintf(file, "%-14s %8.2f %6lld %10.0f %12.0f %10.1f %12.2f", offers[i].name, offer->price, (long long)offer->gpus, offer->rate,
            cost.dollars, cost.hours / 24, 1e9 * cost.dollars / offers[i].options.tokens);
        print_duration(cost.between, file);
        print_duration(cost.interval, file);
        print_duration(cost.young, file);
        if (isfinite(cost.real_dollars)) fprintf(file, " %12.0f %10.1f\n", cost.real_dollars, cost.real_hours / 24);
        else fprintf(file, " %12s %10s\n", "never ends", "");
    }
}

static bool run_cost(Invocation *invocation, Error *error) {
    NamedOffer offers[MOST_OFFERS];
    int count = 0;
    bool read = read_offers(invocation->argc, invocation->argv, offers, &count, &invocation->strings, error);
    SCOPED(command_page_print) CommandPage page;
    command_page_open(&page);
    if (read) print_offers(offers, count, page.file);
    return read;
}

const Command command_cost = {
    .name = "cost",
    .summary = "compare the cost and time of a token budget on several offers",
    .usage = "[tokens=1T] [key=value ...] NAME price=P rate=R [key=value ...] [NAME ...]",
    .explanation =
        "Compares the dollars and days of a token budget on several offers. A word names an offer, and the settings after it belong to "
        "that offer; settings before the\nfirst offer apply to all. Dollars = tokens / (rate * 3600) * price. Interruptions add the cost "
        "of checkpoints and restarts, by Daly's model.\n  smelt cost tokens=1T h100 price=5.01 rate=2750 mi300x price=2.05 rate=2500\n  "
        "smelt cost tokens=100G rate=2500 h price=2.05 spot price=0.95 interruptions=1\n",
    .table = &table,
    .run = run_cost,
};
