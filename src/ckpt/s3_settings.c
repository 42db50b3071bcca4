/* Who asks which S3 server: the variables and files that Amazon's tools use, in their order: variables first, then the
 * profile's section of the credentials file, then of the config file. Called by s3_request.c. Settings own their strings,
 * and secrets are wiped before they are freed. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "ckpt/s3.h"

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* Takes a value that nobody gave before. */
static void offer(char **setting, const char *value) {
    if (!*setting && value && value[0]) *setting = memory_copy_string(value);
}

static char *strip(char *text) {
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1])) text[--length] = '\0';
    return text;
}

/* "[NAME]", or "[profile NAME]" as the config file has it. */
static bool is_section(char *line, const char *profile) {
    static const char label[] = "profile ";
    char *end = strchr(line, ']');
    if (!end) return false;
    *end = '\0';
    char *name = strip(line + 1);
    if (strncmp(name, label, sizeof label - 1) == 0) name = strip(name + sizeof label - 1);
    return strcmp(name, profile) == 0;
}

static void offer_line(S3Settings *settings, char *line) {
    char *equals = strchr(line, '=');
    if (!equals || line[0] == ' ' || line[0] == '\t') /* indented lines belong to nested settings */
        return;
    *equals = '\0';
    const char *name = strip(line), *value = strip(equals + 1);
    const struct {
        const char *name;
        char **setting;
    } known[] = {
        {"aws_access_key_id", &settings->key},
        {"aws_secret_access_key", &settings->secret},
        {"aws_session_token", &settings->token},
        {"region", &settings->region},
        {"endpoint_url", &settings->endpoint},
        {"ca_bundle", &settings->authorities},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0) offer(known[i].setting, value);
}

static void offer_file(S3Settings *settings, const char *path, const char *profile) {
    enum { MOST_BYTES = 1 << 20 };
    bool inside = false;
    int64_t bytes;
    Error ignored;
    char *text = file_read(path, MOST_BYTES, &bytes, &ignored);
    for (char *line, *rest = text; (line = strsep(&rest, "\n"));) {
        if (line[0] == '[') inside = is_section(line, profile);
        else if (inside && line[0] != '#' && line[0] != ';') offer_line(settings, line);
    }
    if (text) explicit_bzero(text, (size_t)bytes);
    free(text);
}

/* The file that a variable names, or that of the home folder. */
static char *file_path(const char *name, const char *usual) {
    const char *given = variable(name), *home = variable("HOME");
    return given ? memory_copy_string(given) : memory_format("%s/.aws/%s", home ? home : "", usual);
}

static void offer_variables(S3Settings *settings) {
    /* One source for all three: a token does not go with another's key. */
    if (variable("AWS_ACCESS_KEY_ID") && variable("AWS_SECRET_ACCESS_KEY")) {
        offer(&settings->key, variable("AWS_ACCESS_KEY_ID"));
        offer(&settings->secret, variable("AWS_SECRET_ACCESS_KEY"));
        offer(&settings->token, variable("AWS_SESSION_TOKEN"));
    }
    offer(&settings->region, variable("AWS_REGION"));
    offer(&settings->region, variable("AWS_DEFAULT_REGION"));
    offer(&settings->endpoint, variable("AWS_ENDPOINT_URL_S3"));
    offer(&settings->endpoint, variable("AWS_ENDPOINT_URL"));
    offer(&settings->authorities, variable("AWS_CA_BUNDLE"));
}

bool s3_settings_read(S3Settings *settings, Error *error) {
    enum { ATTEMPTS = 8, MOST_ATTEMPTS = 100 };
    *settings = (S3Settings){0};
    const char *profile = variable("AWS_PROFILE") ? variable("AWS_PROFILE") : "default";
    char *credentials = file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    char *config = file_path("AWS_CONFIG_FILE", "config");
    offer_variables(settings);
    bool from_variables = settings->key;
    S3Settings files = {0};
    offer_file(&files, credentials, profile);
    offer_file(&files, config, profile);
    if (!from_variables) {
        offer(&settings->key, files.key);
        offer(&settings->secret, files.secret);
        offer(&settings->token, files.token);
    }
    offer(&settings->region, files.region);
    offer(&settings->region, "us-east-1");
    offer(&settings->endpoint, files.endpoint);
    offer(&settings->authorities, files.authorities);
    s3_settings_free(&files);
    int attempts = variable("AWS_MAX_ATTEMPTS") ? atoi(variable("AWS_MAX_ATTEMPTS")) : 0;
    settings->attempts = attempts >= 1 && attempts <= MOST_ATTEMPTS ? attempts : ATTEMPTS;
    bool good = settings->key && settings->secret;
    if (!good) {
        error_set(error, ERROR_USAGE,
            "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write the profile \"%s\" into %s", profile,
            credentials);
        s3_settings_free(settings);
    }
    free(config);
    free(credentials);
    return good;
}

static void forget(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    free(secret);
}

void s3_settings_free(S3Settings *settings) {
    forget(settings->key);
    forget(settings->secret);
    forget(settings->token);
    free(settings->region);
    free(settings->endpoint);
    free(settings->authorities);
    *settings = (S3Settings){0};
}
