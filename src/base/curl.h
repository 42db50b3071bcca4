/* libcurl, which is opened at run time, so that the program starts without it. */
#pragma once

#include <curl/curl.h>

#include "base/error.h"
#include "base/library.h"

#undef curl_easy_setopt
#undef curl_easy_getinfo

/* The functions of libcurl that are used, and their types. */
#define CURL_API(CALL)                                                        \
    CALL(global_init, CURLcode, (long flags))                                 \
    CALL(version_info, curl_version_info_data *, (CURLversion age))           \
    CALL(easy_init, CURL *, (void))                                           \
    CALL(easy_cleanup, void, (CURL * handle))                                 \
    CALL(easy_reset, void, (CURL * handle))                                   \
    CALL(easy_setopt, CURLcode, (CURL * handle, CURLoption option, ...))      \
    CALL(easy_getinfo, CURLcode, (CURL * handle, CURLINFO info, ...))         \
    CALL(easy_perform, CURLcode, (CURL * handle))                             \
    CALL(easy_strerror, const char *, (CURLcode code))                        \
    CALL(slist_append, struct curl_slist *, (struct curl_slist * list, const char *text)) \
    CALL(slist_free_all, void, (struct curl_slist * list))

typedef struct CurlApi { CURL_API(LIBRARY_TYPED_FIELD) } CurlApi;

/* Opens libcurl, which stays loaded, because it may have started threads. `user` needs it, for
 * messages. ERROR_USAGE if it is not installed or too old. */
bool curl_open(CurlApi *curl, const char *user, Error *error);
typedef struct CurlPost {
    const char *url, *body;  /* JSON */
    const char *authorities; /* file with the certificate authorities to trust; NULL: the system's */
    const char *token;       /* bearer token; NULL: none */
    int seconds;             /* for the whole request */
} CurlPost;

/* Posts a JSON text and drops the answer. Returns false with ERROR_COMMUNICATION if no answer arrives in time, or if the
 * status is 400 or more. */
bool curl_post_json(const CurlApi *curl, const CurlPost *post, Error *error);
