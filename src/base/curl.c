/* Opens libcurl. Owns nothing. Called by requests to S3 servers, to servers of
 * rewards, and to those that a training reports to. */
#include "base/curl.h"

#include "base/memory.h"
#include "base/scope.h"

#define CURL_NAME(name, type, arguments) "curl_" #name,

bool curl_open(CurlApi *curl, const char *user, Error *error) {
    enum { OLDEST_CURL = 0x075700 /* 7.87: signs additional headers of S3 */ };
    static const char *const files[] = {"libcurl.so.4", NULL}, *const names[] = {CURL_API(CURL_NAME)};
    void *library = library_open(files, RTLD_NOW | RTLD_LOCAL);
    if (!library) return error_set(error, ERROR_USAGE, "%s needs libcurl, which is not installed: install it (Debian: libcurl4)", user);
    if (library_find(library, names, curl) || curl->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(error, ERROR_USAGE, "libcurl.so.4 is not usable; %s needs libcurl 7.87 or newer", user);
    const curl_version_info_data *version = curl->version_info(CURLVERSION_NOW);
    return version->version_num >= OLDEST_CURL ||
           error_set(error, ERROR_USAGE, "libcurl %s is too old; %s needs 7.87 or newer", version->version, user);
}

static size_t drop_reply(char *data, size_t size, size_t items, void *context) {
    (void)data, (void)context;
    return size * items;
}

bool curl_post_json(const CurlApi *curl, const CurlPost *post, Error *error) {
    CURLcode (*set)(CURL *, CURLoption, ...) = curl->easy_setopt;
    SCOPED_FREE char *authorization = post->token ? memory_format("Authorization: Bearer %s", post->token) : NULL;
    struct curl_slist *headers = curl->slist_append(NULL, "Content-Type: application/json");
    if (authorization) headers = curl->slist_append(headers, authorization);
    CURL *handle = curl->easy_init();
    if (!handle) return error_set(error, ERROR_COMMUNICATION, "libcurl cannot make a request");
    set(handle, CURLOPT_URL, post->url);
    set(handle, CURLOPT_NOSIGNAL, 1L);
    set(handle, CURLOPT_TIMEOUT, (long)post->seconds);
    set(handle, CURLOPT_USERAGENT, "smelt");
    set(handle, CURLOPT_HTTPHEADER, headers);
    set(handle, CURLOPT_POSTFIELDS, post->body);
    set(handle, CURLOPT_WRITEFUNCTION, drop_reply);
    set(handle, CURLOPT_FAILONERROR, 1L);
    if (post->authorities) set(handle, CURLOPT_CAINFO, post->authorities);
    CURLcode code = curl->easy_perform(handle);
    curl->easy_cleanup(handle);
    curl->slist_free_all(headers);
    return code == CURLE_OK || error_set(error, ERROR_COMMUNICATION, "%s", curl->easy_strerror(code));
}
