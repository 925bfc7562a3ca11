module weft.test/management

go 1.21

require github.com/michaelklishin/rabbit-hole/v2 v2.12.0
