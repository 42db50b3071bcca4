// Whether a function that smelt declares for itself, with void * for handles and addresses and int for enumerations, can
// be called as the vendor's header declares it. C++, since only its templates can take the type of a function apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

template <class T> constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;
template <class T, bool = std::is_enum_v<T>> struct plain { using type = T; };
template <class T> struct plain<T, true> { using type = std::underlying_type_t<T>; };
template <class T> using plain_t = typename plain<std::remove_cv_t<T>>::type;

// Numbers of the same size: unsigned ones as such, but that an enumeration may be either. Pointers: void * stands for any
// pointer and for an address in 64 bits, void ** for where either is kept, other pointers for the same, and one to a
// struct of ours for one to a struct that is no larger. Structs by value have the same size.
template <class Ours, class Theirs> constexpr bool fits();

template <class Ours, class Theirs> constexpr bool pointee_fits() {
    using A = std::remove_cv_t<Ours>;
    using B = std::remove_cv_t<Theirs>;
    if constexpr (std::is_void_v<A>) return true;
    else if constexpr (std::is_pointer_v<A> || is_number<A>) return fits<A, B>();
    else if constexpr (std::is_class_v<A> && std::is_class_v<B>) return sizeof(A) >= sizeof(B);
    else return std::is_same_v<A, B>;
}

template <class Ours, class Theirs> constexpr bool fits() {
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        constexpr bool writes = std::is_const_v<std::remove_pointer_t<Ours>> || !std::is_const_v<std::remove_pointer_t<Theirs>> ||
                                std::is_void_v<std::remove_pointer_t<Ours>>;
        return writes && pointee_fits<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
    } else if constexpr (std::is_pointer_v<Ours>) {
        return std::is_void_v<std::remove_pointer_t<Ours>> && is_number<Theirs> && sizeof(Theirs) == sizeof(void *);
    } else if constexpr (is_number<Ours> && is_number<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs) &&
               (std::is_enum_v<Theirs> || std::is_signed_v<plain_t<Ours>> == std::is_signed_v<plain_t<Theirs>>);
    } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
    } else {
        return std::is_same_v<std::remove_cv_t<Ours>, std::remove_cv_t<Theirs>>;
    }
}

template <class Ours, class Theirs> struct same_call : std::false_type {};
template <class R, class... A, class S, class... B> struct same_call<R(A...), S(B...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(A) == sizeof...(B)) return fits<R, S>() && (fits<A, B>() && ...);
        else return false;
    }();
};

// Without an argument: the vendor has no such function.
template <class Ours> constexpr bool can_call() { return true; }
template <class Ours, class Theirs> constexpr bool can_call(Theirs *) { return same_call<Ours, Theirs>::value; }

#define ADDRESS_OF(...) __VA_OPT__(&__VA_ARGS__)
#define CHECK_CALL(symbol, arguments) static_assert(can_call<int arguments>(ADDRESS_OF(symbol)), "function " #symbol " has other arguments");
// A number whose name is empty is 0 in a vendor's column, and any number where it is the other vendor's alone.
#define CHECK_NUMBER(number, ...) __VA_OPT__(static_assert((long long)(number) == (long long)(__VA_ARGS__), #__VA_ARGS__ " is not " #number);)
