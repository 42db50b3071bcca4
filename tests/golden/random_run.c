/* The C half of check_export.py, check_families.py and check_gguf.py: makes run folders with random weights, and prints
 * the tokens of a text, and logits of smelt without the cache, of any model.
 *     random_run make RUN [key=value ...]
 *     random_run tokens MODEL TEXT
 *     random_run logits MODEL TEXT */
#include "backend/backend.h"
#include "support/random_run.h"

#include "infer/generate.h"
#include "run/source.h"
#include "session/weights.h"

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

/* With the model's own tokenizer, without a token that begins a text. */
static bool encode(const char *model, const Config *config, const char *text, TokenIds *ids, Error *error) {
    char *path = source_tokenizer(model, config);
    Tokenizer *tokenizer = path && *path ? tokenizer_open(path, error) : NULL;
    TokenizerEncoder *encoder = tokenizer ? tokenizer_encoder_open(tokenizer) : NULL;
    bool good = encoder ? tokenizer_encode(encoder, text, strlen(text), 0, ids, error) : path && !*path;
    for (const char *c = text; *c && good && !encoder; c++) token_ids_append(ids, (uint8_t)*c);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
    free(path);
    return good;
}

static bool print_tokens(char **arguments, Error *error) {
    OptionStrings strings = {0};
    Config config;
    TokenIds ids = {0};
    bool read = source_read_config(arguments[0], &config, &strings, error) && encode(arguments[0], &config, arguments[1], &ids, error);
    for (size_t i = 0; i < ids.count && read; i++) printf("%d\n", ids.items[i]);
    token_ids_free(&ids);
    options_free_strings(&strings);
    return read;
}

static bool print_logits(Generator *generator, const Config *config, const TokenIds *ids, Error *error) {
    for (size_t i = 0; i < ids->count; i++)
        if (!generator_feed(generator, &ids->items[i], 1, error)) return false;
    const double *logits = generator_logits(generator, error);
    for (int64_t i = 0; logits && i < config->model.vocabulary; i++) printf("%.9g\n", logits[i]);
    return logits != NULL;
}

static bool logits(char **arguments, Error *error) {
    OptionStrings strings = {0};
    Config config;
    TokenIds ids = {0};
    bool read = source_read_config(arguments[0], &config, &strings, error) && encode(arguments[0], &config, arguments[1], &ids, error);
    Generator *generator = read ? weights_open_generator(arguments[0], NULL, &config, config.precision, device_cpu(), false, error) : NULL;
    bool done = generator && print_logits(generator, &config, &ids, error);
    generator_free(generator);
    token_ids_free(&ids);
    options_free_strings(&strings);
    return done;
}

int main(int argc, char **argv) {
    Error error = {0};
    bool done = argc >= 3 && !strcmp(argv[1], "make")     ? make(argv + 2, argc - 2, &error)
                : argc == 4 && !strcmp(argv[1], "tokens") ? print_tokens(argv + 2, &error)
                : argc == 4 && !strcmp(argv[1], "logits")
                    ? logits(argv + 2, &error)
                    : error_set(&error, ERROR_USAGE, "usage: make RUN key=value... | tokens MODEL TEXT | logits MODEL TEXT");
    if (!done) fprintf(stderr, "%s\n", error.message);
    return done ? 0 : (int)error.code;
}
