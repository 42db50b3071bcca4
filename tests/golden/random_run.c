/* The C half of check_export.py and check_families.py: makes run folders with random weights, and prints logits of
 * smelt without the cache.
 *     random_run make RUN [key=value ...]
 *     random_run logits RUN TEXT */
#include "backend/backend.h"
#include "support/random_run.h"

#include "infer/generate.h"
#include "train/source.h"

enum { SETTINGS = 64 };

static bool make(char **arguments, int count, Error *error) {
    OptionStrings strings = {0};
    Config config;
    const char *settings[SETTINGS];
    for (int i = 1; i < count && i <= SETTINGS; i++) settings[i - 1] = arguments[i];
    bool made = random_run_configure(&config, &strings, settings, count - 1, error);
    config.run = arguments[0];
    made = made && random_run_write(&config, error);
    options_free_strings(&strings);
    return made;
}

static bool print_logits(Generator *generator, const Config *config, const char *text, Error *error) {
    for (size_t i = 0; i < strlen(text); i++)
        if (!generator_feed(generator, (int32_t[]){(uint8_t)text[i]}, 1, error)) return false;
    const double *logits = generator_logits(generator, error);
    for (int64_t i = 0; logits && i < config->model.vocabulary; i++) printf("%.9g\n", logits[i]);
    return logits != NULL;
}

static bool logits(char **arguments, Error *error) {
    OptionStrings strings = {0};
    Config config;
    bool read = source_read_config(arguments[0], &config, &strings, error);
    Generator *generator = read ? source_open_generator(arguments[0], &config, config.precision, device_cpu(), false, error) : NULL;
    bool done = generator && print_logits(generator, &config, arguments[1], error);
    generator_free(generator);
    options_free_strings(&strings);
    return done;
}

int main(int argc, char **argv) {
    Error error = {0};
    bool done = argc >= 3 && !strcmp(argv[1], "make") ? make(argv + 2, argc - 2, &error)
                : argc == 4 && !strcmp(argv[1], "logits")
                    ? logits(argv + 2, &error)
                    : error_set(&error, ERROR_USAGE, "usage: make RUN key=value... | logits RUN TEXT");
    if (!done) fprintf(stderr, "%s\n", error.message);
    return done ? 0 : (int)error.code;
}
