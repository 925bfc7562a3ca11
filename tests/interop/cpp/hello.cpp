// Qpid Proton's C++ client: one program that ends with "ok" or a reason.
//
// Owns what a C++ application does with the library: send and be answered, receive, release once, accept. In come a
// url and the name of an empty queue; out comes one line and an exit code. It must not know which broker it talks to.
// Rule: the library's own documentation.
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>

#include <iostream>
#include <set>
#include <stdexcept>
#include <string>

constexpr int COUNT = 10;

class Hello : public proton::messaging_handler {
    std::string url_, queue_;
    int sent_ = 0, answered_ = 0;
    bool released_ = false;
    std::set<int> got_;

  public:
    Hello(std::string url, std::string queue) : url_(std::move(url)), queue_(std::move(queue)) {}

    bool is_done() const { return answered_ == COUNT && got_.size() == COUNT && released_; }

    void on_container_start(proton::container &container) override {
        proton::connection_options login;
        login.user("guest").password("guest").sasl_allow_insecure_mechs(true);
        proton::connection connection = container.connect(url_, login);
        connection.open_sender(queue_);
        connection.open_receiver(queue_, proton::receiver_options().auto_accept(false));
    }

    void on_sendable(proton::sender &sender) override {
        for (; sent_ < COUNT && sender.credit() > 0; ++sent_) {
            proton::message message("hello");
            message.properties().put("number", sent_);
            sender.send(message);
        }
    }

    void on_tracker_accept(proton::tracker &tracker) override {
        ++answered_;
        if (is_done()) tracker.connection().close();
    }

    void on_message(proton::delivery &delivery, proton::message &message) override {
        if (proton::get<std::string>(message.body()) != "hello") throw std::runtime_error("another body");
        if (!released_) {
            released_ = true;
            delivery.release();
            return;
        }
        got_.insert(proton::get<int>(message.properties().get("number")));
        delivery.accept();
        if (is_done()) delivery.connection().close();
    }
};

int main(int, char **words) {
    try {
        Hello hello(words[1], words[2]);
        proton::container(hello).run();
        std::cout << (hello.is_done() ? "ok" : "not everything came") << std::endl;
        return hello.is_done() ? 0 : 1;
    } catch (const std::exception &error) {
        std::cout << error.what() << std::endl;
        return 1;
    }
}
